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

from service.admission.full_queues import FullQueues
from service.admission.gate import Gate
from tasks.queue.errors import QueueFull

#: Seconds between two tries of the first waiting request when no free place is announced.
FALLBACK_S = 0.5

T = TypeVar("T")
Check = Callable[[], None]


class TooManyWaitingError(Exception):
    """The maximum of ``limit`` requests already wait for a place in this process."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests already wait for a place")
        self.limit = limit


class WaitingRoom:
    """The waiting requests of this process: one line per model, at most ``limit`` requests in all.

    All requests, waiting or not, ask the queue through ``gate``; ``full`` knows which queues not to ask.
    """

    def __init__(self, limit: int, full: FullQueues | None = None, gate: Gate | None = None) -> None:
        self._limit, self._full, self._gate = limit, full or FullQueues(), gate or Gate()
        self._lines: dict[str, deque[threading.Event]] = {}
        self._changing = threading.Lock()

    @property
    def num_waiting(self) -> int:
        """Requests waiting for a place."""
        with self._changing:
            return sum(map(len, self._lines.values()))

    def wake(self, model: str) -> None:
        """Let the first request that waits for ``model`` try again."""
        self._full.forget(model)
        with self._changing:
            line = self._lines.get(model)
            if line:
                line[0].set()

    def look_again(self) -> None:
        """Forget which queues were full: a place may just have become free."""
        self._full.forget_all()

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
            BusyError: so many requests ask at the same time that this one's turn did not come.
        """
        if not self._has_line(model):
            try:
                return self._ask(model, attempt, even_if_full=may_exist)
            except QueueFull:
                if wait_s <= 0:
                    raise
        return self._stand(model, attempt, wait_s, check, may_exist=may_exist)

    def _ask(self, model: str, attempt: Callable[[], T], *, even_if_full: bool) -> T:
        with self._gate.passed():
            if not even_if_full:
                self._full.refuse(model)
            try:
                result = attempt()
            except QueueFull as full:
                self._full.found(model, full)
                raise
            self._full.forget(model)
            return result

    def _has_line(self, model: str) -> bool:
        with self._changing:
            return bool(self._lines.get(model))

    def _stand(
        self, model: str, attempt: Callable[[], T], wait_s: float, check: Check, *, may_exist: bool
    ) -> T:
        ticket, deadline = threading.Event(), time.monotonic() + wait_s
        line = self._join(model, ticket)
        try:
            while True:
                ticket.clear()
                rest = deadline - time.monotonic()
                is_first = line[0] is ticket
                if is_first or rest <= 0:
                    try:
                        return self._ask(model, attempt, even_if_full=is_first or may_exist)
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
