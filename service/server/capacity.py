"""How many connections an API process takes: what its settings say, or what its open files allow."""

from __future__ import annotations

#: Open files that are no connections of clients: Redis (64 commands at once, one subscription), the listening
#: socket, logs, and what the interpreter and the tracing libraries open now and then.
RESERVE = 112
#: Connections beyond the most that are taken only to be told so.
SPARE = 16
#: With fewer connections than this no service is worth starting.
FEWEST = 16


class TooFewFilesError(Exception):
    """The limit of open files is too low; the text says what to change."""


def connections(asked: int, max_files: int) -> int:
    """The most connections to serve at the same time.

    Args:
        asked: what ``--max-connections`` says.
        max_files: this process's limit of open files.

    Raises:
        TooFewFilesError: there is no room for connections.
    """
    room = max_files - RESERVE - SPARE
    if room < min(asked, FEWEST):
        raise TooFewFilesError(
            f"The API may have {max_files} files open, but needs {RESERVE + SPARE + FEWEST} or more: raise "
            "the limit (ulimit -n, LimitNOFILE= in a unit, --ulimit nofile= of a container)."
        )
    return min(asked, room)
