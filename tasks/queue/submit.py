"""How the API queues a request: one script accepts it, or says that the queue is full."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tasks.contract import redis_names
from tasks.contract.celery_message import celery_message
from tasks.contract.messages import GenerateRequest, Priority, State, queue_name
from tasks.contract.redis_names import PRIORITY_LISTS
from tasks.queue.errors import QueueFull
from tasks.store.requests import RequestStore, script_source

#: Which of a queue's lists a request goes to, counted from 1 as in Lua.
_LIST_OF = {Priority.INTERACTIVE: 1, Priority.BATCH: 4}


@dataclass(frozen=True, slots=True)
class Key:
    """An ``Idempotency-Key``: the digest that it is kept under, and a fingerprint of its request."""

    digest: str
    fingerprint: str


class KeyReusedError(Exception):
    """An ``Idempotency-Key`` was used before, for a different request."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The record of a submitted request; it ``is_new`` unless it existed before.

    ``created`` is Redis's clock in Unix seconds.
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

    def submit(
        self,
        request: GenerateRequest,
        watch: str,
        queue_timeout_s: float,
        key: Key | None = None,
        owner: str = "",
    ) -> Admission:
        """Queue a request once, however often this is called with its id or key; return its record.

        Args:
            request: calls with the same id queue it only once.
            watch: the channel its events are published on, or empty.
            queue_timeout_s: seconds that it may wait.
            key: the client's name for the request, which may have been queued before under another id.
            owner: whose request it is (:attr:`tasks.store.requests.Record.owner`).

        Raises:
            QueueFull: nothing was queued and nothing is kept.
            KeyReusedError: the key was used for another request.
            redis.RedisError: Redis did not answer; the request may be queued all the same, so submit it
                again under the same id.
        """
        headers: dict[str, str] = {}
        self._add_headers(headers)
        tag = str(uuid.uuid4())
        limit = "" if request.timeout_s is None else request.timeout_s
        name, fingerprint = ("", "") if key is None else (redis_names.named(key.digest), key.fingerprint)
        args: list[Any] = [
            *(self._cap, _LIST_OF[request.priority], celery_message(request, tag, headers, owner), tag),
            *(request.id, request.to_json(), request.model, watch, queue_timeout_s, limit),
            *(name, fingerprint, request.version, request.outline.to_json(), owner),
        ]
        return self._admission(self._submit(keys=_lists(request.model), args=args))

    def waiting(self, model: str) -> int:
        """Requests of a model that wait for a slot."""
        with self._store.redis.pipeline(transaction=False) as pipe:
            for name in _lists(model):
                pipe.llen(name)
            return sum(cast("list[int]", pipe.execute()))

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
