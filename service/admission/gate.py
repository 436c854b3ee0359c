"""Lets few requests at a time ask Redis for a place, so that a burst leaves connections for all else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Most requests that ask at the same time: half of the process's connections to Redis. A question takes well
#: under a millisecond.
WIDTH = 32
#: Seconds that a request waits for its turn.
PATIENCE_S = 10.0


class BusyError(Exception):
    """The turn of a request did not come in time."""


class Gate:
    """The turns are in the order in which the requests came."""

    def __init__(self, width: int = WIDTH, patience_s: float = PATIENCE_S) -> None:
        self._places, self._patience_s = threading.Semaphore(width), patience_s

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Wait for a turn, and keep it for the length of the block. Raises :class:`BusyError`."""
        if not self._places.acquire(timeout=self._patience_s):
            raise BusyError
        try:
            yield
        finally:
            self._places.release()
