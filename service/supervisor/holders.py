"""Which processes hold a lock: a lock lives as long as any process that inherited its open file.

Linux tells it in ``/proc/PID/fdinfo`` (proc(5)), with the process that took the lock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
#: A line such as ``lock: 1: FLOCK  ADVISORY  WRITE 4711 08:01:99 0 EOF``.
_FLOCK = re.compile(r"^lock:\s.* FLOCK .* (\d+) \S+:\S+:\d+ ", re.M)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the lock: its command line, and whether it is the one that took the lock."""

    pid: int
    command: str
    has_taken: bool

    def __str__(self) -> str:
        return f"{self.pid} ({self.command[:60]})"


def holders_of(lock: Path) -> list[Holder]:
    """This user's processes that hold the ``flock`` on a file; others may have the file open and wait.

    Empty where the system doesn't tell.
    """
    with suppress(OSError):
        found = lock.stat()
        takers = {pid: _taker(pid, (found.st_dev, found.st_ino)) for pid in _pids()}
        return [Holder(p, _command(p), p == taker) for p, taker in takers.items() if taker is not None]
    return []


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _taker(pid: int, wanted: tuple[int, int]) -> int | None:
    """The process that took the lock which ``pid`` holds, 0 if it is unknown; ``None`` if it holds none."""
    with suppress(OSError):  # it ended meanwhile, or it is another user's
        for number in os.listdir(PROC / f"{pid}/fd"):  # noqa: PTH208
            if (found := _taken_by(pid, number, wanted)) is not None:
                return found
    return None


def _taken_by(pid: int, number: str, wanted: tuple[int, int]) -> int | None:
    with suppress(OSError):
        found = (PROC / f"{pid}/fd/{number}").stat()
        if (found.st_dev, found.st_ino) == wanted:
            line = _FLOCK.search((PROC / f"{pid}/fdinfo/{number}").read_text())
            return None if line is None else int(line[1])
    return None


def _command(pid: int) -> str:
    with suppress(OSError):
        return (PROC / f"{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "ended"
