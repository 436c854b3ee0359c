"""Logs one line for each HTTP exchange when its answer is complete: what was asked and what it cost."""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from flask import Flask, g, request
from structlog.contextvars import bind_contextvars, clear_contextvars

from tasks.contract.messages import End

if TYPE_CHECKING:
    from flask import Response

    from service.errors import ApiError
    from service.streaming.listener import Listener
    from tasks.contract.messages import GenerateRequest

log = logging.getLogger(__name__)

HEADER = "X-Request-Id"
#: Paths that probes and dashboards ask for every few seconds, and the page's files; logged at level debug.
PROBED = ("/health", "/readyz", "/metrics", "/v1/status", "/assets/")
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(slots=True)
class Exchange:
    """The log entry of one HTTP exchange, filled in as more becomes known.

    Attributes:
        id: the id of the request that the exchange is about, or a new one.
        model: the served model's name.
        outcome: how the exchange ended, unless ``listener`` knows the request's end.
        error: the error's code, if any.
        listener: knows the request's end once it has come.
        prompt: the prompt, if prompts are logged.
        started: when the exchange began, in monotonic seconds.
    """

    id: str
    model: str | None = None
    outcome: str | None = None
    error: str | None = None
    listener: Listener | None = None
    prompt: Any = None
    started: float = field(default_factory=time.monotonic)

    def name(self, request_id: str) -> None:
        """Set the id of the request that the exchange is about; all log lines from now on carry it."""
        self.id = request_id
        bind_contextvars(id=request_id)

    def accept(self, asked: GenerateRequest, *, with_prompt: bool = False) -> None:
        """Record what the client asked for."""
        self.name(asked.id)
        self.model = asked.model
        if with_prompt:
            self.prompt = asked.prompt or [(turn.role, turn.content) for turn in asked.messages or ()]

    def follow(self, listener: Listener) -> None:
        """Record the listener that will know the request's end."""
        self.name(listener.request_id)
        self.listener = listener

    def fail(self, error: ApiError) -> None:
        """Record the error that the client gets instead of an answer."""
        self.error = error.code
        if self.model is not None and not error.was_accepted:
            self.outcome = "refused"

    @property
    def end(self) -> End | None:
        """The request's end, if it has come."""
        return None if self.listener is None else self.listener.end

    @property
    def told_outcome(self) -> str | None:
        """The request's outcome if it has ended, else the exchange's; ``cut`` if the answer was cut short."""
        if self.end is not None:
            return self.end.state.value
        return self.outcome or (None if self.listener is None else "cut")

    def fields(self) -> dict[str, Any]:
        """The fields to log; times are in milliseconds."""
        told = {
            "id": self.id,
            "model": self.model,
            "outcome": self.told_outcome,
            "error": self.error,
            **({} if self.end is None else _cost(self.end)),
            "e2e_ms": round((time.monotonic() - self.started) * 1e3, 1),
            "prompt": self.prompt,
        }
        return {name: value for name, value in told.items() if value is not None}


def present() -> Exchange:
    """The current HTTP exchange's log entry."""
    exchange: Exchange = g.exchange
    return exchange


def register(app: Flask) -> None:
    """Log every HTTP exchange of ``app``, and send the client its id in a header."""

    @app.before_request
    def begin() -> None:
        clear_contextvars()  # left from the previous exchange on this connection
        named = str((request.view_args or {}).get("request_id", ""))
        g.exchange = Exchange(f"req-{uuid.uuid4().hex}")
        g.exchange.name(named if _ID.fullmatch(named) else g.exchange.id)

    @app.after_request
    def end(response: Response) -> Response:
        response.headers[HEADER] = present().id
        response.headers["X-Content-Type-Options"] = "nosniff"
        about = {"method": request.method, "path": request.path, "status": response.status_code}
        response.call_on_close(partial(_write, present(), about))
        return response


def _write(exchange: Exchange, about: dict[str, Any]) -> None:
    level = logging.WARNING if about["status"] >= 500 else logging.INFO
    if about["path"].startswith(PROBED):
        level = logging.DEBUG
    if log.isEnabledFor(level):
        log.log(level, "request", extra={**about, **exchange.fields()})


def _cost(end: End) -> dict[str, Any]:
    """The error's code, the tokens, and the times since the request was accepted."""
    told: dict[str, Any] = {"error": None if end.error is None else end.error.code.value}
    if end.usage is not None:
        told |= {"prompt_tokens": end.usage.prompt_tokens, "tokens": end.usage.completion_tokens}
    if end.timings is not None:
        told |= {name: getattr(end.timings, name) for name in ("cache_n", "queue_ms", "ttft_ms", "attempts")}
    return told
