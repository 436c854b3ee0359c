"""What a queue refuses with."""

from __future__ import annotations


class QueueFull(Exception):  # noqa: N818 - the name that the standard library uses for this
    """The queue holds as many waiting requests as it may; try again later.

    Deliberately no ``OSError``: those are retried by Celery's publisher.

    Attributes:
        waiting: requests waiting when it was refused.
        cap: requests that may wait.
    """

    def __init__(self, waiting: int, cap: int) -> None:
        super().__init__(f"The queue is full: {waiting} requests wait and {cap} may; retry later.")
        self.waiting = waiting
        self.cap = cap
