"""The connections of an API process: where there are too many, those that ask for nothing give way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import gevent

#: Seconds that a connection may ask for nothing before it gives way to a new one.
QUIET_S = 1.0


class Connections:
    """Counts the connections, and knows which of them wait for their next request.

    Args:
        limit: the most connections to serve at the same time.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._num_open = limit, 0
        #: Connections without a request → what ends their wait, and when it began; the longest wait first.
        self._waiting: dict[gevent.Greenlet, tuple[gevent.Timeout, float]] = {}
        self._ending: dict[gevent.Greenlet, gevent.Timeout] = {}

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Count a connection for the length of the block; give whether there is room for it."""
        self._num_open += 1
        try:
            yield self._num_open <= self.limit or self._end_quiet()
        finally:
            self._num_open -= 1

    @contextmanager
    def waiting(self, timeout_s: float) -> Iterator[None]:
        """Leave the block, without an exception, when this connection waited too long or has to give way."""
        with gevent.Timeout(timeout_s, False) as timeout:
            greenlet = gevent.getcurrent()
            self._waiting[greenlet] = timeout, time.monotonic()
            try:
                yield
            finally:
                self._waiting.pop(greenlet, None)
                self._ending.pop(greenlet, None)

    def end_waiting(self) -> None:
        """End every wait."""
        for greenlet in list(self._waiting):
            self._end(greenlet)

    def _end_quiet(self) -> bool:
        """End the longest wait, if it is long; say whether it was."""
        greenlet, (_, began) = next(iter(self._waiting.items()), (None, (None, 0.0)))
        if greenlet is None or time.monotonic() - began < QUIET_S:
            return False
        self._end(greenlet)
        return True

    def _end(self, greenlet: gevent.Greenlet) -> None:
        self._ending[greenlet], _ = self._waiting.pop(greenlet)
        gevent.get_hub().loop.run_callback(self._wake, greenlet)  # only the hub may throw

    def _wake(self, greenlet: gevent.Greenlet) -> None:
        if (timeout := self._ending.get(greenlet)) is not None:
            greenlet.throw(timeout)
