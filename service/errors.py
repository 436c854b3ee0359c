"""Every error over HTTP, in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

Raise :class:`ApiError` anywhere; :mod:`service.routes.error_pages` makes Flask render it. This module
doesn't use Flask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.contract.messages import ErrorCode, Failure
from tasks.contract.versions import UnsupportedVersionError

#: Seconds a client is asked to wait when Redis can't be reached; a restart of Redis with an append-only file
#: takes about that long.
STORE_RETRY_S = 5


@dataclass(eq=False)  # not frozen: Python sets an exception's traceback when it is raised
class ApiError(Exception):
    """An error that the client is told.

    Attributes:
        status: HTTP status.
        code: what happened, for programs.
        message: what happened and what to do, for people.
        param: the wrong field of the body (``messages[0].content``) or the wrong header, if there is one.
        retry_after_s: seconds after which the client may try again, if that can help.
        was_accepted: whether the request was accepted and failed later.
        more_headers: headers that only this error has.
        is_final: whether the same request would fail again; OpenAI's clients are then told not to retry.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None
    is_final: bool = False
    was_accepted: bool = False
    more_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": _type(self.status),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After`` and similar headers."""
        headers = dict(self.more_headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.is_final:
            headers["x-should-retry"] = "false"
        return headers


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A 400: the client has to change its request."""
    return ApiError(400, code, message, param)


def store_unavailable(why: str = "") -> ApiError:
    """Redis can't be reached, or refuses what is needed; nothing was accepted. ``why`` is its trouble."""
    why = why or "Redis can't be reached"
    message = f"The request store can't be used at the moment: {why}. Nothing was accepted. Try again soon."
    return ApiError(503, "store_unavailable", message, retry_after_s=STORE_RETRY_S)


def overloaded() -> ApiError:
    """This process has more to do at the moment than it has connections to Redis."""
    return ApiError(
        429,
        "overloaded",
        "This server is busy with too many requests at once; this one was not accepted. Try again soon.",
        retry_after_s=STORE_RETRY_S,
    )


def store_full(why: str = "Redis is at its memory limit") -> ApiError:
    """Redis is at its ``maxmemory``, or its disk is full."""
    message = f"The request store is full: {why}. Nothing was accepted. Try again later."
    return ApiError(503, "store_full", message, retry_after_s=STORE_RETRY_S)


def shutting_down() -> ApiError:
    """This process is shutting down and takes no new requests."""
    message = "This server is shutting down; try again, another one will answer."
    return ApiError(503, "shutting_down", message, retry_after_s=1)


def too_many_connections(limit: int) -> ApiError:
    """This process serves as many connections as it may."""
    message = (
        f"All {limit} connections of this process are in use (--max-connections, and the limit of open "
        "files); try again soon."
    )
    return ApiError(503, "too_many_connections", message, retry_after_s=1)


def newer_format(error: UnsupportedVersionError) -> ApiError:
    """A newer process wrote data that this one can't read; an upgraded API process can."""
    message = f"{error}. Ask another API process, or this one again when it is upgraded."
    return ApiError(503, "unsupported_version", message, retry_after_s=STORE_RETRY_S, was_accepted=True)


def unknown_request(request_id: str) -> ApiError:
    """There is no such request, or it is no longer kept."""
    message = f"There is no request {request_id!r}; results are kept for a limited time."
    return ApiError(404, "request_not_found", message, "id")


_STATUS = {
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: 400,
    ErrorCode.INVALID_PROMPT: 400,
    ErrorCode.QUEUE_TIMEOUT: 503,
    ErrorCode.REQUEST_TIMEOUT: 504,
    ErrorCode.ATTEMPTS_EXHAUSTED: 500,
    ErrorCode.CANCELLED: 499,
    ErrorCode.INTERNAL: 500,
}


def from_failure(failure: Failure) -> ApiError:
    """The HTTP error for a request that was accepted and then failed."""
    return ApiError(
        _STATUS[failure.code],
        failure.code.value,
        failure.message,
        failure.param,
        retry_after_s=STORE_RETRY_S if failure.code is ErrorCode.QUEUE_TIMEOUT else None,
        # The request has killed its worker several times, and an automatic retry would do it again.
        is_final=failure.code is ErrorCode.ATTEMPTS_EXHAUSTED,
        was_accepted=True,
    )


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
