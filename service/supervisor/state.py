"""The state folder of a service on one machine, locked by everything that uses it.

The lock belongs to an open file. The supervisor hands it to the keeper and to every part, so it is held as
long as one of them lives, whatever kills the others: two programs never write to one folder.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service.supervisor.errors import ServiceError
from service.supervisor.holders import Holder, holders_of

#: Seconds that a lock may still be held by what a killed service leaves behind, until that has ended by
#: itself; and after that was killed.
_GRACE_S, _KILL_S = 1.0, 10.0


@contextmanager
def locked(folder: Path, tell: Callable[[str], None] | None = None) -> Iterator[int]:
    """Lock ``folder``, which is made if missing, and give the lock's descriptor.

    With ``tell``, what a killed service left behind is ended, and ``tell`` gets a text that says so.

    Raises:
        ServiceError: another service has locked it, or it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ServiceError(f"Can't use the state folder {folder}: {error.strerror}.") from error
    try:
        if not _is_taken(lock, _GRACE_S):
            _take_over(lock, folder, tell)
        _sign(lock, folder)
        yield lock
    finally:
        os.close(lock)


def _is_taken(lock: int, timeout_s: float) -> bool:
    """Try to take the lock for some time; whether this process has it."""
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def _sign(lock: int, folder: Path) -> None:
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise ServiceError(f"Can't write to the state folder {folder}: {error.strerror}.") from error


def _take_over(lock: int, folder: Path, tell: Callable[[str], None] | None) -> None:
    """End what a killed service left behind; refuse if a service lives."""
    signed, left = os.pread(lock, 32, 0).decode() or "unknown", holders_of(folder / "lock")
    lives = next((str(holder.pid) for holder in left if holder.has_taken), "")
    if lives or not left:
        raise ServiceError(
            f"Process {lives or signed} already serves with the state in {folder}; "
            "end it, or pass another --state-dir."
        )
    named = ", ".join(map(str, left))
    if tell is None:
        raise ServiceError(f"A killed service left these processes with the state in {folder}: {named}.")
    tell(f"Ending what the killed service {signed} left behind: {named}")
    _kill(left)
    if not _is_taken(lock, _KILL_S):
        raise ServiceError(f"These processes use the state in {folder} and don't end: {named}.")


def _kill(left: list[Holder]) -> None:
    for holder in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(holder.pid, signal.SIGKILL)
