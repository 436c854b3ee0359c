"""What each child of a worker is doing, in memory that the parent shares and that outlives the child."""

from __future__ import annotations

import mmap

from tasks.telemetry.tally import MAX_ROWS

#: Bytes of a note.
_SIZE = 256


class Stages:
    """One short note for each child, by the child's number. Make it before forking."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, MAX_ROWS * _SIZE)

    def note(self, index: int, doing: str) -> None:
        """Note what child ``index`` is ``doing`` now; text is cut at 256 bytes."""
        start = index * _SIZE
        self._memory[start : start + _SIZE] = doing.encode(errors="replace")[:_SIZE].ljust(_SIZE, b"\0")

    def read(self, index: int) -> str:
        """What child ``index`` noted last; empty if nothing."""
        start = index * _SIZE
        return self._memory[start : start + _SIZE].rstrip(b"\0").decode(errors="replace")
