"""A request's life by the scripts that the API, the transport and the children run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import End, FinishReason, GenerateRequest, State, Usage
from tasks.queue.leases import DEATH, LOST_LEASE
from tasks.queue.submit import Admission, Key, RequestQueue
from tasks.store.janitor import Janitor
from tasks.store.requests import Record, RequestStore, script_source
from tasks.worker.attempt import Attempt
from tasks.worker.attempt_store import Append, AttemptStore

MODEL, LIST = "m", "inference.m"
MAX_ATTEMPTS = 3
LEASE_S = 1000.0
SUCCEEDED = End(State.SUCCEEDED, FinishReason.STOP, Usage(3, 2))


@dataclass(frozen=True)
class Taken:
    """A message that a worker has reserved."""

    id: str
    tag: str
    message: dict[str, Any]


class Life:
    """Each change in a request's life as a method; the test plays late and stale workers."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.store, self.janitor = RequestStore(redis, result_ttl_s=100), Janitor(redis, grace_s=0.0)
        self._tags = (f"tag-{n}" for n in count())
        self.attempts = AttemptStore(redis, result_ttl_s=100)
        self._take, self._requeue = (
            redis.register_script(script_source(name)) for name in ("take", "requeue")
        )

    # ---- the API's side -------------------------------------------------------------------------

    def submit(
        self,
        request_id: str,
        *,
        cap: int = 1000,
        watch: str = "",
        queue_timeout_s: float = 60.0,
        key: Key | None = None,
        kind: type[GenerateRequest] = GenerateRequest,
        **fields: Any,
    ) -> Admission:
        request = kind(id=request_id, model=MODEL, **{"prompt": "x", **fields})
        return RequestQueue(self.store, cap).submit(request, watch, queue_timeout_s, key)

    def accept(self, *request_ids: str, **fields: Any) -> None:
        for request_id in request_ids:
            assert self.submit(request_id, **fields).is_new

    # ---- the worker's side ----------------------------------------------------------------------

    def take(self, known: int | None = None) -> Taken | None:
        """Reserve the next message whose format version is at most ``known``; ``None``: of any version."""
        args = [redis_names.LEASES, redis_names.UNACKED, *([] if known is None else [str(known)])]
        reply = self._take(keys=[LIST], args=args)
        text = cast("bytes | None", reply[0] if isinstance(reply, list) else reply)
        if not text:
            return None
        message = json.loads(text)
        return Taken(message["headers"]["id"], message["properties"]["delivery_tag"], message)

    def claim(self, request_id: str) -> Attempt | None:
        return self.attempts.claim(request_id, "child", MAX_ATTEMPTS)

    def run(self, request_id: str, **fields: Any) -> tuple[Taken, Attempt]:
        """Accept, take and claim a request; no other request may wait."""
        self.accept(request_id, **fields)
        return self.run_next()

    def run_next(self) -> tuple[Taken, Attempt]:
        taken = self.take()
        assert taken is not None
        claim = self.claim(taken.id)
        assert claim is not None
        return taken, claim

    def append(self, claim: Attempt, seq: int, end: End | None = None, token: int = 7) -> bool:
        tokens = () if end else (token,)
        item = Append(claim.request.id, claim.number, seq, "t", tokens, end=end, fence=claim.fence)
        [goes_on] = self.attempts.append([item])
        return goes_on

    def acknowledge(self, taken: Taken) -> None:
        self.redis.zrem(redis_names.LEASES, taken.tag)
        self.redis.hdel(redis_names.UNACKED, taken.tag)

    def put_back(self, taken: Taken, charge: float = DEATH, lease: float | str = "") -> int:
        """Put a message back as the transport does. Returns 1: put back; 0: over; -1: no longer reserved."""
        tag = next(self._tags)
        message = json.dumps(_message(taken.id, tag))
        args = [
            redis_names.LEASES,
            redis_names.UNACKED,
            taken.tag,
            lease,
            LIST,
            message,
            tag,
            taken.id,
            LIST,
            charge,
        ]
        return cast("int", self._requeue(args=args))

    def lose_lease(self, taken: Taken) -> int:
        """End a lease: its worker does not renew it, and another worker sweeps it."""
        if self.redis.zscore(redis_names.LEASES, taken.tag) is not None:
            self.redis.zincrby(redis_names.LEASES, -2 * LEASE_S, taken.tag)
        return self.put_back(taken, LOST_LEASE, LEASE_S)

    # ---- the state -------------------------------------------------------------------------------

    def record(self, request_id: str) -> Record:
        record = self.store.fetch(request_id)
        assert record is not None
        return record

    def state(self, request_id: str) -> State:
        return self.record(request_id).state

    def end(self, request_id: str) -> End:
        end = self.store.read_log(request_id)[-1].end
        assert end is not None
        return end

    def waiting(self) -> list[str]:
        """Ids in the order in which they are served."""
        texts = cast("list[bytes]", self.redis.lrange(LIST, 0, -1))
        return [json.loads(text)["headers"]["id"] for text in reversed(texts)]

    def reserved(self) -> list[str]:
        entries = cast("list[bytes]", self.redis.hvals(redis_names.UNACKED))
        return [json.loads(entry)[0]["headers"]["id"] for entry in entries]


def _message(request_id: str, tag: str, version: int = 1) -> dict[str, Any]:
    info = {"exchange": "", "routing_key": LIST}
    return {
        "body": "",
        "headers": {"id": request_id, "v": version},
        "properties": {"delivery_tag": tag, "delivery_info": info},
    }
