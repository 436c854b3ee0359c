"""The error with which a full queue refuses a request."""

from __future__ import annotations


class QueueFull(Exception):  # noqa: N818 - the name that the standard library uses for this
    """As many requests wait in the queue as may; try again later.

    Deliberately no ``OSError``: Celery's publisher retries an ``OSError``.

    Attributes:
        waiting: requests that waited at the time.
        cap: requests that may wait.
    """

    def __init__(self, waiting: int, cap: int) -> None:
        super().__init__(f"The queue is full: {waiting} requests wait and {cap} may; retry later.")
        self.waiting = waiting
        self.cap = cap
