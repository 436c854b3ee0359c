"""Every request in Redis: its record, its log, its state.

Each operation is one Lua script (``tasks/store/scripts``), so it happens completely or not at all. Every
method raises ``redis.RedisError`` when Redis can't be reached; the callers decide what to do then.
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

#: Scripts that accept new requests, and the one that asks whether they may.
ACCEPTING = ("submit", "push", "probe")
#: Most finished requests looked at when some are to be forgotten.
FORGET_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """A request's record, without its log; times are Redis's clock in Unix seconds.

    ``raw`` is the request as JSON in the format ``version``; without its prompt once the request is over.
    ``owner`` is a digest of the API key that it came with; empty: everybody's.
    """

    id: str
    state: State
    model: str
    created: float
    attempt: int
    seq: int
    raw: bytes
    version: int = 1
    owner: str = ""

    @property
    def request(self) -> GenerateRequest:
        """The request itself. Raises :class:`tasks.contract.versions.UnsupportedVersionError`."""
        versions.check(f"request {self.id}", {versions.FIELD: self.version}, versions.REQUEST)
        return GenerateRequest.from_json(self.raw)

    def is_visible_to(self, viewer: str) -> bool:
        """Whether the owner ``viewer`` may see it; an empty ``viewer`` may see everything."""
        return viewer in ("", self.owner) or not self.owner


class RequestStore:
    """Reads requests in Redis, and changes them from outside their workers.

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
            owner=raw.get(b"owner", b"").decode(),
        )

    def watch(self, request_id: str, channel: str) -> State | None:
        """Publish a request's events on ``channel``, too; return its state, or ``None`` if unknown."""
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
        viewer: str = "",
    ) -> State | None:
        """End a request that isn't over; return the state it was in, or ``None`` if unknown to ``viewer``.

        A waiting request's place is free at once, a running request's slot within a step.
        """
        state = cast("bytes | None", self._cancel(args=[request_id, code.value, message, self._ttl, viewer]))
        return None if state is None else State(state.decode())

    def expire_due(self) -> int:
        """End waiting requests past their queue timeout and all past their time limit; return how many."""
        return int(self._expire(args=[self._ttl]))

    def forget_oldest(self, most_bytes: int) -> int:
        """Forget the oldest finished requests while all of them take more; return how many.

        Requests whose time to live has ended don't count.
        """
        return int(self._forget(args=[most_bytes, FORGET_BATCH]))

    def result_bytes(self) -> int:
        """Bytes of all finished requests that are kept, at most some seconds old."""
        return int(cast("bytes | None", self.redis.get(redis_names.RESULTS_BYTES)) or 0)

    def num_running(self) -> int:
        """Number of requests that are claimed and not over, of all models."""
        return self.redis.zcard(redis_names.RUNNING)

    def num_requeued(self) -> dict[str, int]:
        """How often requests were put back into the queue, by reason; reasons without any are missing."""
        found = cast("dict[bytes, bytes]", self.redis.hgetall(redis_names.REQUEUED))
        return {reason.decode(): int(number) for reason, number in found.items()}

    def num_dead_letters(self) -> int:
        """How many messages no worker could read, since the store began."""
        return int(cast("bytes | None", self.redis.hget(redis_names.TOTALS, "dead_letters")) or 0)

    def deaths(self, request_id: str) -> float:
        """How often in a row a request's child died while the request got no further.

        A lost lease counts a quarter: its worker may only have been paused. But a request that brings down
        whole hosts must end, too.
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

    @cached_property
    def _forget(self) -> Script:
        return self._script("forget")

    def _script(self, name: str) -> Script:
        return self.redis.register_script(script_source(name))


def script_source(name: str) -> str:
    """The source of ``tasks/store/scripts/{name}.lua`` with the common part before it.

    Redis at its ``maxmemory`` refuses the scripts that accept new requests. All other scripts may go on, so
    that accepted requests end and make room.
    """
    folder = files("tasks.store") / "scripts"
    head = "#!lua\n" if name in ACCEPTING else "#!lua flags=allow-oom\n"
    return head + (folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text()
