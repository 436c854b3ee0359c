"""A request as its worker's parent sees it: revoked, terminated or out of Celery's time, it is cancelled.

Celery would acknowledge its message and leave it running, or drop it and leave it accepted.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.request import Request
from redis import RedisError

from tasks.contract.messages import ErrorCode, State

logger = logging.getLogger(__name__)

REVOKED = "The request was revoked through Celery's remote control."
TOO_LONG = "The request took longer than the time limit that Celery's settings give a task."


class CancellableRequest(Request):  # type: ignore[misc]
    """What Celery keeps of a message of ``tasks.generate``."""

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Cancel the request. Its child, which runs others too, stops it within a step and says so.

        Raises ``redis.RedisError``.
        """
        if self.app.request_store.cancel(self.id, message=REVOKED) is not None:
            self.send_event("task-revoked", terminated=True, signum=str(signal), expired=False)

    def revoked(self) -> bool:
        """Whether Celery revoked this message or it has expired; if so, its request is cancelled."""
        if not super().revoked():
            return False
        self._cancel(ErrorCode.CANCELLED, REVOKED)
        return True

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """End the request when its child was ended because of a time limit of Celery's."""
        if not soft:
            self._cancel(ErrorCode.REQUEST_TIMEOUT, TOO_LONG)
        super().on_timeout(soft, timeout)

    def _cancel(self, code: ErrorCode, message: str) -> State | None:
        try:
            cancelled: State | None = self.app.request_store.cancel(self.id, code, message)
        except RedisError as error:
            # The janitor finds that its message is gone, and it comes here again.
            logger.warning("request %s can't be cancelled yet: %s", self.id, error)
            return None
        return cancelled
