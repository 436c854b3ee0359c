"""The contract between the API and the workers: request, event, end.

Standard library only, so that either side can import it at no cost. Every type is frozen, and
``to_json``/``from_json`` are inverse to each other. The other side may run another release: readers drop
fields that they don't know, and :mod:`tasks.contract.versions` says which changes need a new version. JSON
keys of an event are one letter long because an event is written per token; :class:`Event` lists them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from tasks.contract import versions
from tasks.contract.tolerant import UnreadableError, read

#: Celery's name for the one task; its only argument is the request's id.
TASK_NAME = "tasks.generate"


def queue_name(model: str) -> str:
    """Name of the Celery queue that holds the waiting requests of ``model``."""
    return f"inference.{model}"


class State(StrEnum):
    """The state of a request.

    ``QUEUED ⇄ RUNNING → SUCCEEDED | FAILED | CANCELLED``; ``QUEUED → EXPIRED | CANCELLED | FAILED``.
    A request that was put back for another attempt is ``QUEUED`` again.
    """

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """Whether nothing can happen to the request any more."""
        return self not in (State.QUEUED, State.RUNNING)


class Priority(StrEnum):
    """Which of a queue's lists a request waits in; interactive requests are served first."""

    INTERACTIVE = "interactive"
    BATCH = "batch"

    @property
    def celery(self) -> int:
        """Kombu's Redis priority: 0 is served first, 9 last."""
        return 0 if self is Priority.INTERACTIVE else 9


class FinishReason(StrEnum):
    """Why generation ended, in OpenAI's words; ``CANCELLED`` is ours. Later releases may have others."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class ErrorCode(StrEnum):
    """What can go wrong behind the queue; :mod:`service.errors` maps each to an HTTP status.

    A code that this release doesn't know is read as ``INTERNAL``: its message says what happened.
    """

    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_PROMPT = "invalid_prompt"
    QUEUE_TIMEOUT = "queue_timeout"
    REQUEST_TIMEOUT = "request_timeout"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    CANCELLED = "cancelled"
    INTERNAL = "internal_error"

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        return cls.INTERNAL if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. The defaults are llama.cpp's (``common/common.h``).

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0, ``repeat_penalty`` 1 and the two
    penalties 0 each switch their stage off. ``seed`` ``None`` means a random seed.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation: ``role`` is ``system``, ``user``, ``assistant`` or ``tool``."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A validated request. Exactly one of ``prompt`` (a completion) and ``messages`` (a chat) is set.

    Attributes:
        id: unique; also the Celery task's id.
        model: the served model's name.
        max_tokens: most tokens to generate; ``None``: as many as the context has room for.
        stop: strings that end the text and are not part of it.
        stream: write tokens as they come (``True``) or seldom (``False``).
        timeout_s: most seconds from acceptance to the end, or ``None``.
    """

    id: str
    model: str
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stream: bool = False
    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None

    @property
    def version(self) -> int:
        """The lowest format version with all that the request uses; older workers leave it alone."""
        return 1

    @property
    def outline(self) -> Self:
        """The request without its prompt: what is kept of it once it is over."""
        return replace(
            self,
            prompt=None if self.prompt is None else "",
            messages=None if self.messages is None else (),
        )

    def to_json(self) -> str:
        """Serialise; ASCII only, so any store keeps it byte for byte."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Inverse of :meth:`to_json`. Raises ``ValueError`` on foreign JSON."""
        return read(cls, json.loads(text))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """What a request cost, in milliseconds; names are llama-server's where it has the figure.

    ``prompt_n`` counts computed prompt tokens, ``cache_n`` reused ones; ``prompt_ms`` runs from admission
    into the batch to the first token, ``predicted_ms`` from the first token to the last.
    ``queue_ms`` runs from acceptance to the first claim, ``ttft_ms`` from acceptance to the first token.
    ``itl_ms`` is the mean gap between tokens, ``itl_p95_ms`` its 95th percentile; 0 below two tokens.
    """

    prompt_n: int = 0
    prompt_ms: float = 0.0
    cache_n: int = 0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    predicted_per_second: float = 0.0
    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    itl_p95_ms: float = 0.0
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no answer: ``message`` says what happened and what to do."""

    code: ErrorCode
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended. ``error`` is set unless ``state`` is ``SUCCEEDED``.

    ``finish_reason`` is a :class:`FinishReason`, or what a later release's worker says: clients are told it
    as it is.
    """

    state: State
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: Failure | None = None


#: Most characters of an error's message: it may quote the prompt, and is kept in several places.
MAX_MESSAGE = 2000
_VERSION = versions.written(versions.EVENT)
#: ``json.dumps`` with separators would make an encoder at each call.
compact_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a request's log: some text and the tokens it came from, or the end.

    Attributes:
        seq: 1, 2, 3, … without a gap; also the SSE id and the Redis stream's entry id (``seq-0``).
        text: UTF-8-complete text to append; may be empty while a character or a stop string is held back.
        tokens: the token ids delivered by this event, in order.
        end: set on the last event only.

    JSON: ``{"s": seq, "t": text, "k": tokens, "end": {...}}``. Only the last event has ``end``, and ``v``,
    the version, is written only if it is not 1.
    """

    seq: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    end: End | None = None

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read an entry of a log. Raises as :meth:`from_dict` does."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Build an event from its decoded JSON.

        Raises:
            tasks.contract.versions.UnsupportedVersionError: a newer process wrote it.
            ValueError: it is no event.
        """
        if not isinstance(raw, dict):
            raise UnreadableError(f"This is no event: {raw!r:.80}")
        versions.check("event", raw, versions.EVENT)
        try:
            # By hand, for speed: one is read per token. Lua's cjson writes an empty array as an empty object.
            seq, text, tokens, end = raw["s"], raw["t"], tuple(raw["k"] or ()), raw.get("end")
        except (KeyError, TypeError) as error:
            raise UnreadableError(f"This is no event ({error!r}): {raw!r:.80}") from None
        return cls(seq, text, tokens, None if end is None else read(End, end))


def event_body(text: str, tokens: tuple[int, ...]) -> str:
    """The members of an event's JSON object but ``s`` and ``end``, which ``append.lua`` adds; ASCII only."""
    return compact_json({**_VERSION, "t": text, "k": tokens})[1:-1]


def end_json(end: End) -> str:
    """An event's ``end``; ASCII only. A longer message than :data:`MAX_MESSAGE` is cut off."""
    told = {name: value for name, value in asdict(end).items() if value is not None}
    if end.error is not None and len(end.error.message) > MAX_MESSAGE:
        told["error"]["message"] = end.error.message[:MAX_MESSAGE] + " …"
    return compact_json(told)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the metrics need to know of one finished request; one API process reads it, exactly once.

    ``itl_ms`` holds every gap between two tokens, in milliseconds.
    """

    id: str
    model: str
    state: State
    e2e_ms: float
    usage: Usage | None = None
    timings: Timings | None = None
    error_code: str | None = None
    itl_ms: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read an outcome that a script pushed to its list. Raises as :meth:`Event.from_dict` does."""
        raw = json.loads(text)
        versions.check("outcome", raw, versions.EVENT)
        end = read(End, raw["end"])
        return cls(
            id=raw["id"],
            model=raw["model"],
            state=end.state,
            e2e_ms=raw["e2e_ms"],
            usage=end.usage,
            timings=end.timings,
            error_code=None if end.error is None else end.error.code.value,
            itl_ms=tuple(raw.get("itl_ms") or ()),
        )
