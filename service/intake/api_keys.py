"""Who may ask: API keys, brought as bearer tokens."""

from __future__ import annotations

import hmac

from flask import Flask, request

from service.errors import ApiError

#: What needs a key. The rest, such as the page, health and metrics, tells nothing of what was asked.
GUARDED = "/v1/"


def register(app: Flask, keys: tuple[str, ...]) -> None:
    """Have the API answer 401 to a request without one of ``keys``; if there are none, none is needed."""
    if not keys:
        return
    known = [key.encode() for key in keys]

    @app.before_request
    def check() -> None:
        if request.path.startswith(GUARDED) and not _is_among(known, request.headers.get("Authorization")):
            raise ApiError(
                401,
                "invalid_api_key",
                "This server wants an API key that it knows: send Authorization: Bearer KEY.",
                "Authorization",
                is_final=True,
            )


def _is_among(known: list[bytes], header: str | None) -> bool:
    scheme, _, token = (header or "").partition(" ")
    given = token.strip().encode()
    # Every key is compared, each in constant time, so that the time tells nothing.
    found = [hmac.compare_digest(given, key) for key in known]
    return scheme.lower() == "bearer" and any(found)
