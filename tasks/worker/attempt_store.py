"""What a worker does with a request in Redis: it claims it, and delivers what was generated.

Each operation is one Lua script (``tasks/store/scripts``). Every method raises ``redis.RedisError`` when
Redis can't be reached; the callers decide what to do then.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tasks.contract import versions
from tasks.contract.messages import (
    End,
    ErrorCode,
    Failure,
    GenerateRequest,
    State,
    compact_json,
    end_json,
    event_body,
)
from tasks.store.requests import script_source
from tasks.worker.attempt import Attempt

if TYPE_CHECKING:
    from redis import Redis


class SuspectError(Exception):
    """The request may be killing its children: claim it only while no other such request is being tried."""


@dataclass(frozen=True, slots=True)
class Append:
    """What one attempt delivers at a step; without text, tokens and end it only asks whether to go on.

    ``seq`` is the event's number, one above the attempt's last, so that an append can be repeated.
    ``fence`` is the attempt's fence.
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


class AttemptStore:
    """Claims requests and delivers to their logs.

    Args:
        redis: a client with ``decode_responses=False``.
        result_ttl_s: seconds that a finished request's record and log are kept.
        known: the newest format of requests that may be claimed.
    """

    def __init__(self, redis: Redis, result_ttl_s: int = 3600, known: int = versions.REQUEST) -> None:
        self._ttl, self._known = result_ttl_s, known
        self._claim = redis.register_script(script_source("claim"))
        self._append = redis.register_script(script_source("append"))

    def claim(
        self,
        request_id: str,
        child_id: str,
        max_attempts: int,
        suspect_from: float | None = None,
        fence: str | None = None,
    ) -> Attempt | None:
        """Claim a request for a child; ``None`` when there is nothing to generate.

        There is nothing to generate when the request is over, unknown, too late, out of attempts, or
        unreadable; an unreadable request ends. A request with ``max_attempts`` deaths
        (:meth:`RequestStore.deaths`) is out of attempts. If the answer to a call was lost, repeat the call
        with the same ``fence`` (:func:`new_fence`): both calls are one attempt.

        Raises:
            SuspectError: the request has at least ``suspect_from`` deaths; it is not claimed.
            tasks.contract.versions.UnsupportedVersionError: it needs a newer worker; it is not claimed.
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
        number, text, queue_ms, age_ms, first_ms, seq, owner = reply
        try:
            request = GenerateRequest.from_json(text)
        except ValueError as error:
            failure = Failure(ErrorCode.INTERNAL, f"The worker can't read this request: {error}")
            end = End(State.FAILED, error=failure)
            self.append([Append(request_id, int(number), int(seq) + 1, end=end, fence=fence)])
            return None
        return Attempt(
            request=request,
            number=int(number),
            fence=fence,
            queue_ms=float(queue_ms),
            age_ms=float(age_ms),
            first_ms=None if float(first_ms) < 0 else float(first_ms),
            first_seq=int(seq),
            owner=owner.decode(),
        )

    def append(self, items: Sequence[Append]) -> list[bool]:
        """Deliver one step of several attempts in one round trip; return for each whether to go on.

        ``False`` means that the request runs or waits elsewhere or is over: stop generating it.
        Nothing of such an item is written.
        """
        args: list[Any] = [self._ttl]
        for item in items:
            args += _append_args(item)
        return [bool(verdict) for verdict in cast("list[int]", self._append(args=args))]


def new_fence() -> str:
    """A unique word that names one attempt."""
    return uuid.uuid4().hex[:12]


def _append_args(item: Append) -> Iterable[Any]:
    if item.is_silent:
        return (item.id, item.attempt, item.seq, "", 0, "", "", "", item.fence)
    return (
        item.id,
        item.attempt,
        item.seq,
        event_body(item.text, item.tokens),
        len(item.tokens),
        "" if item.prompt_tokens is None else item.prompt_tokens,
        "" if item.end is None else end_json(item.end),
        compact_json([round(gap, 3) for gap in item.itl_ms]) if item.itl_ms else "",
        item.fence,
    )
