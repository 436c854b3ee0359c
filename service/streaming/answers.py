"""Turns events into OpenAI's JSON: the chunks of a stream, or the one body of a whole answer.

One chunk is written per token, so the parts that all chunks share are encoded once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from service.errors import ApiError, from_failure
from tasks.contract.messages import End, Event, GenerateRequest

#: Writes ASCII only, so that no client splits a line at a Unicode character that counts as a line end.
_compact = json.JSONEncoder(separators=(",", ":")).encode
_MARK = "\x00text\x00"


@dataclass(frozen=True)
class Answer:
    """Writes one request's answer.

    Attributes:
        id: the request's id.
        model: the model's name.
        created: when the request was accepted, in Unix seconds.
        is_chat: whether it is a chat completion rather than a text completion.
        with_usage: whether a stream ends with a chunk that carries the usage.
        fingerprint: what the model is computed with, if known.
    """

    id: str
    model: str
    created: int
    is_chat: bool
    with_usage: bool = False
    fingerprint: str | None = None

    @classmethod
    def to(
        cls,
        request: GenerateRequest,
        created: float,
        *,
        with_usage: bool = False,
        fingerprint: str | None = None,
    ) -> Answer:
        """The answer to ``request``, created at ``created`` (Unix seconds)."""
        is_chat = request.messages is not None
        return cls(request.id, request.model, int(created), is_chat, with_usage, fingerprint)

    # ---- a stream -------------------------------------------------------------------------------

    @property
    def opening(self) -> str | None:
        """The first chunk, which names the role; a text completion has none."""
        return self._chunk({"role": "assistant", "content": ""}, None) if self.is_chat else None

    def piece(self, text: str) -> str:
        """A chunk that adds ``text``."""
        before, after = self._piece_around
        return before + _compact(text) + after

    def closing(self, end: End) -> list[str]:
        """The last chunks: the finish reason with the timings, then the usage if asked for."""
        extra = {"timings": _timings(end)}
        chunks = [self._chunk({} if self.is_chat else "", end.finish_reason, extra)]
        if self.with_usage:
            chunks.append(_compact({**self._head, "choices": [], "usage": _usage(end)}))
        return chunks

    @cached_property
    def _piece_around(self) -> tuple[str, str]:
        chunk = self._chunk({"content": _MARK} if self.is_chat else _MARK, None)
        before, _, after = chunk.partition(_compact(_MARK))
        return before, after

    @cached_property
    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _chunk(self, delta: Any, reason: str | None, extra: dict[str, Any] | None = None) -> str:
        name = "delta" if self.is_chat else "text"
        choice = {"index": 0, name: delta, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self.with_usage else {}
        return _compact({**self._head, "choices": [choice], **usage, **(extra or {})})

    # ---- one body -------------------------------------------------------------------------------

    def whole(self, events: Iterable[Event]) -> dict[str, Any]:
        """The complete answer. Raises ``ApiError`` when the request ended with an error."""
        events = list(events)
        end = events[-1].end
        if end is None:
            raise ApiError(500, "internal_error", "The request's log has no end.")
        if end.error is not None:
            raise from_failure(end.error)
        text = "".join(event.text for event in events)
        content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": end.finish_reason}
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {
            **self._head,
            "object": kind,
            "choices": [choice],
            "usage": _usage(end),
            "timings": _timings(end),
        }


def _usage(end: End) -> dict[str, Any] | None:
    if end.usage is None:
        return None
    usage = asdict(end.usage)
    usage["total_tokens"] = end.usage.prompt_tokens + end.usage.completion_tokens
    cached = 0 if end.timings is None else end.timings.cache_n
    return {**usage, "prompt_tokens_details": {"cached_tokens": cached}}


def _timings(end: End) -> dict[str, Any] | None:
    return None if end.timings is None else asdict(end.timings)
