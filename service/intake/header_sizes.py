"""Refuses headers that are longer than what they are for; gunicorn bounds all other headers."""

from __future__ import annotations

from flask import Flask, request

from service.errors import ApiError

#: The most characters of each header that this server reads.
MAX_CHARS = {
    "Access-Control-Request-Headers": 2048,
    "Content-Encoding": 64,
    "Content-Type": 256,
    "Host": 300,
    "Idempotency-Key": 512,
    "If-Match": 512,
    "If-Modified-Since": 64,
    "If-None-Match": 512,
    "If-Unmodified-Since": 64,
    "Last-Event-ID": 64,
    "Origin": 300,
    "Prefer": 512,
}
_VARIABLES = {name: name.upper().replace("-", "_") for name in MAX_CHARS}
#: WSGI's name of each header → the header.
_HEADERS = {v if v == "CONTENT_TYPE" else f"HTTP_{v}": name for name, v in _VARIABLES.items()}


def register(app: Flask) -> None:
    """Answer 431 to requests with a header that is too long, and name it."""

    @app.before_request
    def check() -> None:
        for variable, name in _HEADERS.items():
            size = len(request.environ.get(variable, ""))
            if size > MAX_CHARS[name]:
                raise _too_large(name, size)


def _too_large(name: str, size: int) -> ApiError:
    message = f"{name} has {size} characters; this server reads {MAX_CHARS[name]} at most."
    return ApiError(431, "header_too_large", message, name)
