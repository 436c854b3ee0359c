"""The API's way into the queue: publish below the cap, or be told that it is full."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any, cast

from celery import Celery

from tasks.contract import versions
from tasks.contract.messages import TASK_NAME, GenerateRequest, queue_name
from tasks.contract.prefixes import HEADER, prefixes
from tasks.queue.transport import SUBMISSION, QueueFull
from tasks.store.requests import Admission, Key, RequestStore, Submission

__all__ = ["QueueFull", "RequestQueue"]

#: kombu's lists of one queue: the plain name, then the name, this separator and the priority.
PRIORITY_LISTS = ("", "\x06\x163", "\x06\x166", "\x06\x169")
#: Seconds that a publish waits for a free connection.
ACQUIRE_TIMEOUT_S = 5.0
#: Seconds to wait, at most, that a refused client is told.
MAX_RETRY_AFTER_S = 300
#: Seconds for which a measured drain rate is good enough.
INTERVAL_S = 1.0


class RequestQueue:
    """The waiting requests of every model.

    Args:
        app: built by :func:`tasks.celery.create_app`.
        store: where the requests' records are.
        limit: requests of a model that may wait; the app's ``queue_limit``.
    """

    def __init__(self, app: Celery, store: RequestStore, limit: int) -> None:
        self._app = app
        self._store = store
        self.limit = limit
        #: Seconds between claims of each model, and until when that counts (monotonic seconds).
        self._intervals: dict[str, tuple[float, float]] = {}

    def submit(
        self, request: GenerateRequest, watch: str, queue_timeout_s: float, key: Key | None = None
    ) -> Admission:
        """Queue a request, once however often it is called with the same id or key; which one it became.

        Args:
            request: its id is the idempotency key.
            watch: the channel its events are published on, or empty.
            queue_timeout_s: seconds that it may wait.
            key: the client's own name for it, under which it may have been queued before, with another id.

        Raises:
            QueueFull: nothing was queued and nothing is kept.
            KeyReusedError: the key stands for another request.
            kombu.exceptions.OperationalError: Redis did not answer in a few seconds; the request may have
                been queued all the same, so submit it again under the same id.
            redis.RedisError: likewise.
            kombu.exceptions.LimitExceeded: no connection was free for :data:`ACQUIRE_TIMEOUT_S` seconds.
        """
        submission = Submission(request, watch, queue_timeout_s, key)
        self._publish(submission)
        return submission.admission()

    def waiting(self, model: str) -> int:
        """Requests of a model that wait for a slot."""
        with self._store.redis.pipeline(transaction=False) as pipe:
            for suffix in PRIORITY_LISTS:
                pipe.llen(queue_name(model) + suffix)
            return sum(cast("list[int]", pipe.execute()))

    def retry_after_s(self, model: str) -> int:
        """Whole seconds until a place is likely to be free, at least 1; measured once a second at most."""
        interval, until = self._intervals.get(model, (1.0, 0.0))
        if (now := monotonic()) >= until:
            interval = self._store.claim_interval_s(model) or 1.0
            self._intervals[model] = interval, now + INTERVAL_S
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(interval)))

    def _publish(self, submission: Submission) -> None:
        refusal = None
        with self._app.producer_pool.acquire(block=True, timeout=ACQUIRE_TIMEOUT_S) as producer:
            try:
                self._send(submission, producer)
            except QueueFull as full:
                # Kept from leaving the block, which would close a connection that has no fault.
                refusal = full
        if refusal is not None:
            raise refusal

    def _send(self, submission: Submission, producer: Any) -> None:
        request = submission.request
        self._app.send_task(
            TASK_NAME,
            args=[request.id],
            task_id=request.id,
            queue=queue_name(request.model),
            declare=[],  # the queue is a list of this name; there is nothing to declare
            priority=request.priority.celery,
            ignore_result=True,
            # Celery's own would build a result backend anew in each greenlet, for a millisecond.
            result_cls=_NoResult,
            headers={HEADER: prefixes(request), versions.FIELD: request.version, SUBMISSION: submission},
            producer=producer,
        )


class _NoResult:
    """What Celery returns of a task whose result is elsewhere."""

    ignored: bool

    def __init__(self, task_id: str) -> None:
        self.id = task_id
