"""Lets web pages of other origins use the API (CORS), as far as a setting says."""

from __future__ import annotations

import re

from flask import Flask, Response, request

_ANY = "*"
_METHODS = "GET, POST, DELETE"
#: The headers of an answer that a page may read.
_EXPOSED = "Location, Retry-After, X-Request-Id, Preference-Applied, Idempotent-Replayed"
#: Names of headers, separated by commas.
_NAMES = re.compile(r"[A-Za-z0-9, _-]*")
#: Seconds for which a browser need not ask again.
_MAX_AGE_S = "600"


def register(app: Flask, origins: frozenset[str]) -> None:
    """Answer questions of browsers, and let pages of ``origins`` read the answers; ``*`` is every origin.

    A browser asks before it sends a key or JSON (``OPTIONS``), and sends no key with the question.
    """

    @app.before_request
    def preflight() -> Response | None:
        is_asked = request.method == "OPTIONS" and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in request.environ
        return Response(status=204) if is_asked else None

    if not origins:
        return

    @app.after_request
    def allow(response: Response) -> Response:
        origin = request.environ.get("HTTP_ORIGIN", "")
        response.vary.add("Origin")
        if origin and (origin in origins or _ANY in origins):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
            if request.method == "OPTIONS":
                _allow_request(response)
        return response


def _allow_request(response: Response) -> None:
    asked = request.environ.get("HTTP_ACCESS_CONTROL_REQUEST_HEADERS", "")
    response.headers["Access-Control-Allow-Methods"] = _METHODS
    response.headers["Access-Control-Max-Age"] = _MAX_AGE_S
    if _NAMES.fullmatch(asked):
        response.headers["Access-Control-Allow-Headers"] = asked
