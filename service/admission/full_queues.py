"""Remembers which queues were just found full, so that hundreds are refused for one question to Redis."""

from __future__ import annotations

import time
from collections.abc import Callable

from tasks.queue.errors import QueueFull

#: Seconds for which a full queue counts as still full, unless a free place is announced; then one request
#: asks again, and the others are refused until its answer is there.
FULL_S = 0.1


class FullQueues:
    """What is known in this process; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: For each model, the last ``QueueFull`` and until when it counts.
        self._known: dict[str, tuple[QueueFull, float]] = {}

    def refuse(self, model: str) -> None:
        """Raise ``QueueFull`` if the queue is known to be full; otherwise the caller may ask Redis."""
        known = self._known.get(model)
        if known is None:
            return
        full, until = known
        if self._clock() < until:
            raise QueueFull(full.waiting, full.cap)
        self.found(model, full)

    def found(self, model: str, full: QueueFull) -> None:
        """Redis said that the queue is full."""
        self._known[model] = full, self._clock() + FULL_S

    def forget(self, model: str) -> None:
        """A place in the queue may be free."""
        self._known.pop(model, None)

    def forget_all(self) -> None:
        """A place in some queue may be free."""
        self._known.clear()
