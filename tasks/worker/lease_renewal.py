"""Renews the leases of the requests that a worker holds."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any

from celery import bootsteps
from celery.utils.timer2 import Timer
from celery.worker import state
from redis import RedisError

from tasks.queue.leases import UNACKED_OPTIONS
from tasks.store.connect import connect
from tasks.store.requests import script_source

logger = logging.getLogger(__name__)

_RENEWING = "Renewing leases"
#: Renewals during one lease: two may fail before it runs out.
RENEWALS_PER_LEASE = 3


class Leases(bootsteps.StartStopStep):  # type: ignore[misc]
    """Renews the leases of the messages that this worker answers for, in a thread.

    The event loop's timers would come too late: while it reconnects to Redis, the loop sleeps for up to 30 s
    at a time. The solo pool keeps it busy for the length of a task, and threads for the length of the drain.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._interval = worker.app.settings.lease / RENEWALS_PER_LEASE
        self._board = worker.app.board
        self._timer = Timer()  # a daemon: it ends with the process, after the drain

    def start(self, worker: Any) -> None:
        """Begin to renew."""
        # The warning is wrong here: running tasks are acknowledged over the next connection, and no other
        # worker gets them.
        warnings.filterwarnings("ignore", r"\s*In Celery 5\.1 .*\s*on connection loss cancels")
        timeouts = {"socket_timeout": self._interval, "socket_connect_timeout": self._interval}
        redis = connect(worker.app.settings.redis_url, **timeouts)
        self._renew = redis.register_script(script_source("renew"))
        self._timer.call_repeatedly(self._interval, self.renew)

    def stop(self, worker: Any) -> None:
        """Do nothing: the pool drains after this."""

    def renew(self) -> None:
        """Renew once."""
        tags = [request.message.delivery_tag for request in held_requests()]
        if not tags:
            return
        try:
            num_held = int(self._renew(args=[UNACKED_OPTIONS["unacked_index_key"], *tags]))
        except RedisError as exc:
            self._board.note(_RENEWING, exc)
        else:
            self._board.over(_RENEWING)
            if num_held < len(tags):
                logger.warning("%d of %d leases were lost to another worker", len(tags) - num_held, len(tags))


def held_requests() -> list[Any]:
    """The requests that this worker answers for: waiting for a slot, or running."""
    return list(_snapshot(state.reserved_requests) | _snapshot(state.active_requests))


def _snapshot(requests: Iterable[Any]) -> set[Any]:
    while True:
        try:
            return set(requests)
        except RuntimeError:  # another thread added one meanwhile
            continue
