"""Lets requests wait for a place in a full queue, first come, first served within this process.

The queue itself doesn't know of the waiting requests. The first one tries again whenever the subscriber
hears of a free place. It also tries every half second, since pub/sub may lose that message.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from tasks.queue.errors import QueueFull

#: Seconds between two tries of the first waiting request when no free place is announced.
FALLBACK_S = 0.5
#: Seconds for which a full queue counts as still full, unless a free place is announced. Under overload
#: most requests are refused, and asking the queue each time would cost a round trip.
FULL_S = 0.1

T = TypeVar("T")
Check = Callable[[], None]


class TooManyWaitingError(Exception):
    """The maximum of ``limit`` requests already wait for a place in this process."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests already wait for a place")
        self.limit = limit


class WaitingRoom:
    """The waiting requests of this process: one line per model, at most ``limit`` requests in all."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._lines: dict[str, deque[threading.Event]] = {}
        #: For each model, the last ``QueueFull`` and until when it counts (monotonic seconds).
        self._full: dict[str, tuple[QueueFull, float]] = {}
        self._changing = threading.Lock()

    @property
    def num_waiting(self) -> int:
        """Requests waiting for a place."""
        with self._changing:
            return sum(map(len, self._lines.values()))

    def wake(self, model: str) -> None:
        """Let the first request that waits for ``model`` try again."""
        with self._changing:
            self._full.pop(model, None)
            line = self._lines.get(model)
            if line:
                line[0].set()

    def look_again(self) -> None:
        """Forget which queues were full: a place may just have become free."""
        self._full.clear()

    def enter(
        self, model: str, attempt: Callable[[], T], wait_s: float, check: Check, *, may_exist: bool = False
    ) -> T:
        """Call ``attempt`` until it doesn't raise ``QueueFull``, for up to ``wait_s`` seconds.

        Returns the result of ``attempt``. ``check`` is called at least every :data:`FALLBACK_S` and may raise
        to give up. With ``may_exist``, the request may have been accepted before, so ``attempt`` is called
        even if the queue was just found full.

        Raises:
            QueueFull: the queue is still full after that time, or ``wait_s`` is 0 and it was just found full.
            TooManyWaitingError: too many requests already wait in this process.
        """
        if not self._has_line(model):
            if wait_s <= 0 and not may_exist:
                self._refuse_if_full(model)
            try:
                return attempt()
            except QueueFull as full:
                self._full[model] = full, self._clock() + FULL_S
                if wait_s <= 0:
                    raise
        return self._stand(model, attempt, wait_s, check)

    def _refuse_if_full(self, model: str) -> None:
        full, until = self._full.get(model, (None, 0.0))
        if full is not None and self._clock() < until:
            raise QueueFull(full.waiting, full.cap)

    def _has_line(self, model: str) -> bool:
        with self._changing:
            return bool(self._lines.get(model))

    def _stand(self, model: str, attempt: Callable[[], T], wait_s: float, check: Check) -> T:
        ticket, deadline = threading.Event(), time.monotonic() + wait_s
        line = self._join(model, ticket)
        try:
            while True:
                ticket.clear()
                rest = deadline - time.monotonic()
                if line[0] is ticket or rest <= 0:
                    try:
                        return attempt()
                    except QueueFull:
                        if rest <= 0:
                            raise
                ticket.wait(min(rest, FALLBACK_S))
                check()
        finally:
            self._leave(model, line, ticket)

    def _join(self, model: str, ticket: threading.Event) -> deque[threading.Event]:
        with self._changing:
            if sum(map(len, self._lines.values())) >= self._limit:
                raise TooManyWaitingError(self._limit)
            line = self._lines.setdefault(model, deque())
            line.append(ticket)
            return line

    def _leave(self, model: str, line: deque[threading.Event], ticket: threading.Event) -> None:
        with self._changing:
            line.remove(ticket)
            if line:
                line[0].set()
            else:
                del self._lines[model]
