"""The state folder of a service on one machine, locked by the service that uses it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.supervisor.errors import ServiceError

#: Seconds that a lock may still be held by the keeper of a service that was killed just now.
_GRACE_S = 1.0


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Lock ``folder``, which is made if missing, and give the lock's descriptor.

    Raises:
        ServiceError: another service has locked it, or it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ServiceError(f"Can't use the state folder {folder}: {error.strerror}.") from error
    try:
        _take(lock, folder)
        yield lock
    finally:
        os.close(lock)


def _take(lock: int, folder: Path) -> None:
    deadline = time.monotonic() + _GRACE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ServiceError(_taken(lock, folder)) from None
            time.sleep(0.05)
        else:
            os.truncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            return


def _taken(lock: int, folder: Path) -> str:
    holder = os.pread(lock, 32, 0).decode() or "unknown"
    return f"Process {holder} already serves with the state in {folder}; end it, or pass another --state-dir."
