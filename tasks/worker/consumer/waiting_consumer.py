"""Celery's consumer, but no error of Redis ends it, and each is told once.

Celery takes most error replies (READONLY, OOM, NOPERM, …) for faults of its own and ends with "Unrecoverable
error". Here it connects again after a pause, as after a lost connection.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from celery.utils.threads import bound_open_broker_sockets
from celery.worker.consumer import Consumer as CeleryConsumer
from celery.worker.state import maybe_shutdown
from redis.backoff import ExponentialBackoff

logger = logging.getLogger(__name__)

WHO = "Connecting to the queue"
#: Seconds of the first pause and of the longest, and between two looks for a signal to end.
FIRST_S, LONGEST_S, LOOK_S = 0.1, 5.0, 0.2
#: Seconds for which messages must have been consumed until a trouble counts as over.
SETTLED_S = 1.0
#: Seconds that closing a broken connection may wait for an answer over it.
CLOSING_S = 1.0


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Consumes messages for as long as the worker lives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._failures, self._ready_at = 0, 0.0
        self._backoff = ExponentialBackoff(cap=LONGEST_S, base=FIRST_S)
        super().__init__(*args, **kwargs)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect; try for as long as that takes."""
        conn = conn.ensure_connection(self._note, callback=maybe_shutdown)
        self.first_connection_attempt = False
        return conn

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Note the trouble and pause."""
        self._note(exc)
        self._pause()

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Note the trouble, close what is left of the connection, and pause.

        Running tasks go on: their messages are acknowledged over the next connection.
        """
        self._note(exc)
        connection: Any = self.connection
        self.connection: Any = None
        bound_open_broker_sockets(connection, CLOSING_S)
        for close in (lambda: connection.collect(socket_timeout=CLOSING_S), connection.close):
            with suppress(Exception):
                close()
        self._pause()

    def on_ready(self) -> None:
        """Note that messages are consumed; what was wrong is over if that lasts."""
        self._ready_at = monotonic()
        self.timer.call_after(SETTLED_S, self._settle, (self._ready_at,))
        super().on_ready()

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Have a message kept for people; Celery would acknowledge it."""
        logger.error("a message can't be decoded: %r", exc)
        message.reject_log_error(logger, self.connection_errors)

    def _note(self, exc: BaseException, interval: float = 0.0) -> None:
        self.app.board.note(WHO, exc)

    def _settle(self, ready_at: float) -> None:
        if ready_at == self._ready_at:
            self._failures = 0
            self.app.board.over(WHO)

    def _pause(self) -> None:
        self._ready_at = 0.0
        until = monotonic() + self._backoff.compute(self._failures)
        self._failures += 1
        while (left := until - monotonic()) > 0:
            maybe_shutdown()
            sleep(min(left, LOOK_S))
