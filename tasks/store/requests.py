"""The truth about every request, in Redis: its record, its log, its state.

Each step is one Lua script (``tasks/store/scripts``), so it happens wholly or not at all, whoever dies. Every
method raises ``redis.RedisError`` when Redis can't be reached; the callers decide what that means.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from tasks.contract import redis_names, versions
from tasks.contract.messages import End, ErrorCode, Event, GenerateRequest, State
from tasks.store.script_call import Line

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


@dataclass(frozen=True, slots=True)
class Key:
    """An ``Idempotency-Key``: what it is kept under, and a fingerprint of what was asked with it."""

    digest: str
    fingerprint: str


class KeyReusedError(Exception):
    """An ``Idempotency-Key`` already stands for another request than the one it came with."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The record that stands for a submission; it ``is_new`` unless it was there before.

    ``created``: Redis's clock in Unix seconds.
    """

    id: str
    is_new: bool
    state: State
    created: float


@dataclass(slots=True)
class Submission:
    """A request on its way into the queue, and what ``submit.lua`` answered, once it has.

    Attributes:
        request: its id is taken once, however often it is submitted.
        watch: the channel to publish its events on, or empty.
        queue_timeout_s: seconds that it may wait.
        key: the client's own name for it, if it has one.
    """

    request: GenerateRequest
    watch: str
    queue_timeout_s: float
    key: Key | None = None
    reply: list[Any] = field(default_factory=list)

    def args(self) -> list[Any]:
        """What ``submit.lua`` is told of it."""
        request, key = self.request, self.key
        limit = "" if request.timeout_s is None else request.timeout_s
        name, fingerprint = ("", "") if key is None else (redis_names.named(key.digest), key.fingerprint)
        head = [request.id, request.to_json(), request.model, self.watch, self.queue_timeout_s]
        return [*head, limit, name, fingerprint, request.version]

    @property
    def num_waiting(self) -> int | None:
        """Requests that waited when the queue was found full, or ``None``."""
        return -self.reply[0] - 1 if len(self.reply) == 1 else None

    def admission(self) -> Admission:
        """Which request it became. Raises :class:`KeyReusedError`."""
        if not self.reply:
            raise KeyReusedError
        found, is_new, state, created = self.reply
        return Admission(found.decode(), bool(is_new), State(state.decode()), float(created))


class SuspectError(Exception):
    """The request may be what kills its children: claim it while no other such request is being tried."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A child's right to run a request, until a later attempt takes it.

    ``queue_ms``: acceptance to first claim. ``age_ms``: acceptance to this claim. ``first_ms``: acceptance
    to the first token, if an earlier attempt delivered it. ``seq``: the last event's number. ``fence``: a
    word of this attempt alone.
    """

    request: GenerateRequest
    attempt: int
    queue_ms: float
    age_ms: float
    first_ms: float | None
    seq: int
    fence: str = ""


@dataclass(frozen=True, slots=True)
class Append:
    """What one running request has to deliver at a step; no text, tokens or end asks only whether to go on.

    ``seq`` numbers the event, one above the claim's ``seq`` first, so that an append can be repeated.
    ``fence`` is the claim's; when empty, only the attempt's number is compared.
    """

    id: str
    attempt: int
    seq: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    end: End | None = None
    itl_ms: tuple[float, ...] = ()
    fence: str = ""

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to write to the log."""
        return not (self.text or self.tokens or self.end)


class RequestStore:
    """Everything that the API and the workers do to a request in Redis.

    Args:
        redis: a client with ``decode_responses=False``.
        result_ttl_s: seconds that a finished request's record and log are kept.
        known: the newest format of requests that may be claimed.
    """

    def __init__(self, redis: Redis, result_ttl_s: int = 3600, known: int = versions.REQUEST) -> None:
        self.redis = redis
        self._ttl = result_ttl_s
        self._known = known

    # ---- the API's side -------------------------------------------------------------------------

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

    # ---- the worker's side ----------------------------------------------------------------------

    def deaths(self, request_id: str) -> float:
        """How often in a row a request's child died while the request got no further.

        A lost lease counts a quarter: its worker may only have been paused, but what brings down whole
        hosts has to end, too.
        """
        return float(cast("bytes | None", self.redis.hget(redis_names.record(request_id), "deaths")) or 0)

    def claim(
        self,
        request_id: str,
        child_id: str,
        max_attempts: int,
        suspect_from: float | None = None,
        fence: str | None = None,
    ) -> Claim | None:
        """Take a request to run it; ``None`` when it is over, unknown, too late or out of attempts.

        Out of attempts is what has :meth:`deaths` of ``max_attempts``. When it is unknown whether a call
        did it, it may be repeated with the same ``fence`` (:func:`new_fence`): that is one attempt.

        Raises:
            SuspectError: it has at least ``suspect_from`` of them; it is not claimed.
            tasks.contract.versions.UnsupportedVersionError: it is for a newer worker; it is not claimed.
        """
        fence = fence or new_fence()
        suspects = "" if suspect_from is None else suspect_from
        args: list[Any] = [request_id, child_id, max_attempts, self._ttl, fence, suspects, self._known]
        reply = cast("list[Any]", self._claim(args=args))
        if not reply:
            return None
        if reply == [0]:
            raise SuspectError(request_id)
        if reply[0] < 0:
            raise versions.UnsupportedVersionError(f"request {request_id}", -reply[0], self._known)
        attempt, request, queue_ms, age_ms, first_ms, seq = reply
        first = float(first_ms)
        return Claim(
            request=GenerateRequest.from_json(request),
            attempt=int(attempt),
            queue_ms=float(queue_ms),
            age_ms=float(age_ms),
            first_ms=None if first < 0 else first,
            seq=int(seq),
            fence=fence,
        )

    def append(self, items: Sequence[Append]) -> list[bool]:
        """Deliver one step of several requests in one round trip; for each, whether to go on.

        ``False`` means that the request runs or waits elsewhere or is over: stop generating it.
        Nothing of such an item is written.
        """
        args: list[Any] = [self._ttl]
        for item in items:
            args += _append_args(item)
        return [bool(verdict) for verdict in self._append.call(args)]

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
    def _claim(self) -> Script:
        return self._script("claim")

    @cached_property
    def _append(self) -> Line:
        return Line(self.redis, script_source("append"))

    def _script(self, name: str) -> Script:
        return self.redis.register_script(script_source(name))


def new_fence() -> str:
    """A word for one attempt alone."""
    return uuid.uuid4().hex[:12]


def script_source(name: str) -> str:
    """The source of ``tasks/store/scripts/{name}.lua`` with the common part before it.

    Redis at its ``maxmemory`` refuses what accepts new requests; all other scripts may go on, so that what
    was accepted ends and makes room.
    """
    folder = files("tasks.store") / "scripts"
    head = "#!lua\n" if name in ACCEPTING else "#!lua flags=allow-oom\n"
    return head + (folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text()


def _append_args(item: Append) -> Iterable[Any]:
    if item.is_silent:
        return (item.id, item.attempt, item.seq, "", 0, "", "", "", item.fence)
    event = {**versions.written(versions.EVENT), "t": item.text, "k": item.tokens}
    return (
        item.id,
        item.attempt,
        item.seq,
        _compact(event)[1:-1],
        len(item.tokens),
        "" if item.prompt_tokens is None else item.prompt_tokens,
        "" if item.end is None else _compact({k: v for k, v in asdict(item.end).items() if v is not None}),
        _compact([round(gap, 3) for gap in item.itl_ms]) if item.itl_ms else "",
        item.fence,
    )


#: ``json.dumps`` with separators would make an encoder at each call.
_compact = json.JSONEncoder(separators=(",", ":")).encode
