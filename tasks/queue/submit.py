"""The API's way into the queue: one script accepts a request below the cap, or says that it is full."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

from tasks.contract import redis_names
from tasks.contract.celery_message import celery_message
from tasks.contract.messages import GenerateRequest, Priority, State, queue_name
from tasks.contract.redis_names import PRIORITY_LISTS
from tasks.queue.errors import QueueFull
from tasks.store.requests import RequestStore, script_source

#: Which of a queue's lists a request goes to, counted from 1 as in Lua.
_LIST_OF = {Priority.INTERACTIVE: 1, Priority.BATCH: 4}
#: Seconds to wait, at most, that a refused client is told.
MAX_RETRY_AFTER_S = 300
#: Seconds for which a measured drain rate is good enough.
INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Key:
    """An ``Idempotency-Key``: what it is kept under, and a fingerprint of what was asked with it."""

    digest: str
    fingerprint: str


class KeyReusedError(Exception):
    """An ``Idempotency-Key`` already stands for another request than the one it came with."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The record that stands for a request that was submitted; it ``is_new`` unless it was there before.

    ``created``: Redis's clock in Unix seconds.
    """

    id: str
    is_new: bool
    state: State
    created: float


class RequestQueue:
    """The waiting requests of every model.

    Args:
        store: where the requests' records are.
        cap: requests of a model that may wait.
        add_headers: adds to the headers of a message, for example the context of a trace.
    """

    def __init__(
        self,
        store: RequestStore,
        cap: int,
        add_headers: Callable[[dict[str, str]], None] = lambda _headers: None,
    ) -> None:
        self._store, self._cap, self._add_headers = store, cap, add_headers
        self._submit = store.redis.register_script(script_source("submit"))
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
            redis.RedisError: Redis did not answer; the request may have been queued all the same, so submit
                it again under the same id.
        """
        headers: dict[str, str] = {}
        self._add_headers(headers)
        tag = str(uuid.uuid4())
        limit = "" if request.timeout_s is None else request.timeout_s
        name, fingerprint = ("", "") if key is None else (redis_names.named(key.digest), key.fingerprint)
        args: list[Any] = [
            *(self._cap, _LIST_OF[request.priority], celery_message(request, tag, headers), tag),
            *(request.id, request.to_json(), request.model, watch, queue_timeout_s, limit),
            *(name, fingerprint, request.version),
        ]
        return self._admission(self._submit(keys=_lists(request.model), args=args))

    def waiting(self, model: str) -> int:
        """Requests of a model that wait for a slot."""
        with self._store.redis.pipeline(transaction=False) as pipe:
            for name in _lists(model):
                pipe.llen(name)
            return sum(cast("list[int]", pipe.execute()))

    def retry_after_s(self, model: str) -> int:
        """Whole seconds until a place is likely to be free, at least 1; measured once a second at most."""
        interval, until = self._intervals.get(model, (1.0, 0.0))
        if (now := monotonic()) >= until:
            interval = self._store.claim_interval_s(model) or 1.0
            self._intervals[model] = interval, now + INTERVAL_S
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(interval)))

    def _admission(self, reply: Any) -> Admission:
        match reply:
            case []:
                raise KeyReusedError
            case [refused]:
                raise QueueFull(-refused - 1, self._cap)
        found, is_new, state, created = reply
        return Admission(found.decode(), bool(is_new), State(state.decode()), float(created))


def _lists(model: str) -> list[str]:
    return [queue_name(model) + suffix for suffix in PRIORITY_LISTS]
