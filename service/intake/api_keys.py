"""Checks API keys, which clients send as bearer tokens."""

from __future__ import annotations

import hmac

from flask import Flask, request

from service.errors import ApiError

#: Paths with this prefix need a key. Others, such as the page, health and metrics, show no request's text.
GUARDED = "/v1/"


def register(app: Flask, keys: tuple[str, ...]) -> None:
    """Answer 401 to API requests without one of ``keys``; if ``keys`` is empty, no key is needed."""
    if not keys:
        return
    known = [key.encode() for key in keys]

    @app.before_request
    def check() -> None:
        if request.path.startswith(GUARDED) and not _is_among(known, request.headers.get("Authorization")):
            raise ApiError(
                401,
                "invalid_api_key",
                "The API key is missing or unknown: send Authorization: Bearer KEY.",
                "Authorization",
                is_final=True,
            )


def _is_among(known: list[bytes], header: str | None) -> bool:
    scheme, _, token = (header or "").partition(" ")
    given = token.strip().encode()
    # Compare every key, each in constant time, so that the time taken reveals nothing about the keys.
    found = [hmac.compare_digest(given, key) for key in known]
    return scheme.lower() == "bearer" and any(found)
