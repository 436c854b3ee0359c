"""Which processes hold a lock: a lock lives as long as any process that inherited its open file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the lock; ``command`` is its command line."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command[:60]})"


def holders_of(lock: Path) -> list[Holder]:
    """This user's processes that hold the ``flock`` on a file; others may have the file open and wait.

    Empty where the system doesn't tell.
    """
    with suppress(OSError):
        wanted = lock.stat()
        return [Holder(pid, _command(pid)) for pid in _pids() if _holds(pid, (wanted.st_dev, wanted.st_ino))]
    return []


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _holds(pid: int, wanted: tuple[int, int]) -> bool:
    with suppress(OSError):  # it ended meanwhile, or it is another user's
        return any(_is_locked(pid, number, wanted) for number in os.listdir(PROC / f"{pid}/fd"))  # noqa: PTH208
    return False


def _is_locked(pid: int, number: str, wanted: tuple[int, int]) -> bool:
    with suppress(OSError):
        found = (PROC / f"{pid}/fd/{number}").stat()
        if (found.st_dev, found.st_ino) == wanted:
            return " FLOCK " in (PROC / f"{pid}/fdinfo/{number}").read_text()
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        return (PROC / f"{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "ended"
