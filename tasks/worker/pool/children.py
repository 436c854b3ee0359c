"""What the rest of the worker may ask of a pool, its children and its event loop."""

from __future__ import annotations

from billiard import current_process
from celery.concurrency.prefork import TaskPool
from kombu.asynchronous import get_event_loop


def child_index() -> int:
    """This process's number among a pool's children, which a dead child's replacement takes over; else 0."""
    return int(getattr(current_process(), "index", 0))


def child_pids(pool: TaskPool) -> list[int]:
    """The process ids of a pool's children, none before it has started and after it has stopped."""
    return [child.pid for child in pool._pool._pool] if pool._pool else []


def wake_event_loop() -> None:
    """Have the worker's event loop, if there is one, do another round now."""
    if (hub := get_event_loop()) is not None:
        hub.call_soon(bool)
