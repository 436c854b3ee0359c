"""The truth about every request, in Redis: its record, its log, its state.

Each step is one Lua script (``tasks/store/scripts``), so it happens wholly or not at all. Every
method raises ``redis.RedisError`` when Redis can't be reached; the callers decide what that means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, cast

from tasks.contract import redis_names, versions
from tasks.contract.messages import ErrorCode, Event, GenerateRequest, State

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

#: Scripts that let new work in.
ACCEPTING = ("submit", "push")


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a request without its log; times are Redis's clock in Unix seconds.

    ``raw``: the request as JSON, of the format ``version``.
    """

    id: str
    state: State
    model: str
    created: float
    attempt: int
    seq: int
    raw: bytes
    version: int = 1

    @property
    def request(self) -> GenerateRequest:
        """What was asked. Raises :class:`tasks.contract.versions.UnsupportedVersionError`."""
        versions.check(f"request {self.id}", {versions.FIELD: self.version}, versions.REQUEST)
        return GenerateRequest.from_json(self.raw)


class RequestStore:
    """What can be asked of requests in Redis, and done to them from outside their workers.

    Args:
        redis: a client with ``decode_responses=False``.
        result_ttl_s: seconds that a finished request's record and log are kept.
    """

    def __init__(self, redis: Redis, result_ttl_s: int = 3600) -> None:
        self.redis = redis
        self._ttl = result_ttl_s

    def fetch(self, request_id: str) -> Record | None:
        """The record of a request, or ``None`` when there is none (any more)."""
        raw = cast("dict[bytes, bytes]", self.redis.hgetall(redis_names.record(request_id)))
        if b"request" not in raw:
            return None
        return Record(
            id=request_id,
            state=State(raw[b"state"].decode()),
            model=raw[b"model"].decode(),
            created=float(raw[b"created"]),
            attempt=int(raw[b"attempt"]),
            seq=int(raw[b"seq"]),
            raw=raw[b"request"],
            version=int(raw.get(b"v", 1)),
        )

    def watch(self, request_id: str, channel: str) -> State | None:
        """Have a request's events published on ``channel`` too; its state, or ``None`` when unknown."""
        state = cast("bytes | None", self._watch(args=[request_id, channel]))
        return None if state is None else State(state.decode())

    def read_log(self, request_id: str, after: int = 0) -> list[Event]:
        """The events numbered above ``after``, in order.

        Raises:
            tasks.contract.versions.UnsupportedVersionError: a newer process wrote one of them.
        """
        entries = cast(
            "list[tuple[bytes, dict[bytes, bytes]]]",
            self.redis.xrange(redis_names.log(request_id), min=f"{after + 1}-0"),
        )
        return [Event.from_json(entry[b"e"]) for _, entry in entries]

    def cancel(
        self,
        request_id: str,
        code: ErrorCode = ErrorCode.CANCELLED,
        message: str = "The request was cancelled.",
    ) -> State | None:
        """End a request that isn't over; the state it was in, or ``None`` when unknown.

        A waiting request's place is free at once; a running one's slot within a step.
        """
        state = cast("bytes | None", self._cancel(args=[request_id, code.value, message, self._ttl]))
        return None if state is None else State(state.decode())

    def expire_due(self) -> int:
        """End the waiting requests whose queue timeout is over, and all whose time limit is; how many."""
        return int(self._expire(args=[self._ttl]))

    def num_running(self) -> int:
        """Requests claimed and not over, of all models."""
        return self.redis.zcard(redis_names.RUNNING)

    def num_requeued(self) -> dict[str, int]:
        """How often requests were put back into the queue, by reason; reasons that never were are missing."""
        found = cast("dict[bytes, bytes]", self.redis.hgetall(redis_names.REQUEUED))
        return {reason.decode(): int(number) for reason, number in found.items()}

    def claim_interval_s(self, model: str) -> float | None:
        """Mean seconds between a model's latest claims, the queue's drain time per place, or ``None``.

        Counted up to now, so that a stalled queue shows.
        """
        times = [float(t) for t in cast("list[bytes]", self.redis.lrange(redis_names.claims(model), 0, -1))]
        if not times:
            return None
        seconds, micros = self.redis.time()
        return max(0.0, seconds + micros / 1e6 - times[-1]) / len(times)

    def deaths(self, request_id: str) -> float:
        """How often in a row a request's child died while the request got no further.

        A lost lease counts a quarter: its worker may only have been paused, but what brings down whole
        hosts has to end, too.
        """
        return float(cast("bytes | None", self.redis.hget(redis_names.record(request_id), "deaths")) or 0)

    # ---- scripts --------------------------------------------------------------------------------

    @cached_property
    def _watch(self) -> Script:
        return self._script("watch")

    @cached_property
    def _cancel(self) -> Script:
        return self._script("cancel")

    @cached_property
    def _expire(self) -> Script:
        return self._script("expire")

    def _script(self, name: str) -> Script:
        return self.redis.register_script(script_source(name))


def script_source(name: str) -> str:
    """The source of ``tasks/store/scripts/{name}.lua`` with the common part before it.

    Redis at its ``maxmemory`` refuses what accepts new requests; all other scripts may go on, so that what
    was accepted ends and makes room.
    """
    folder = files("tasks.store") / "scripts"
    head = "#!lua\n" if name in ACCEPTING else "#!lua flags=allow-oom\n"
    return head + (folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text()
