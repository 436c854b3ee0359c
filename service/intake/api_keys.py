"""Checks API keys, which clients send as bearer tokens, and says whose request it is."""

from __future__ import annotations

import hmac
from hashlib import blake2b

from flask import Flask, g, request

from service.errors import ApiError

#: Paths with this prefix need a key. Others, such as the page, health and metrics, show no request's text.
GUARDED = "/v1/"
#: Who sends a request without a key where keys are needed; owns nothing.
_NOBODY = "nobody"


def register(app: Flask, keys: tuple[str, ...]) -> None:
    """Answer 401 to API requests without one of ``keys``; if ``keys`` is empty, no key is needed."""
    if not keys:
        return
    known = [key.encode() for key in keys]

    @app.before_request
    def check() -> None:
        header, g.owner = request.headers.get("Authorization"), _NOBODY
        if not request.path.startswith(GUARDED):
            return
        if not _is_among(known, header):
            raise ApiError(
                401,
                "invalid_api_key",
                "The API key is missing or unknown: send Authorization: Bearer KEY.",
                "Authorization",
                is_final=True,
            )
        g.owner = owner_of(_parsed(header)[1])


def present_owner() -> str:
    """Whose key the current request brought; empty if no keys are needed here, which is everybody."""
    return str(g.get("owner", ""))


def owner_of(key: bytes) -> str:
    """The name under which a key's requests are kept: the same in every process, and not the key."""
    return blake2b(key, digest_size=16, person=b"inference-owner").hexdigest()


def _parsed(header: str | None) -> tuple[str, bytes]:
    scheme, _, token = (header or "").partition(" ")
    return scheme.lower(), token.strip().encode()


def _is_among(known: list[bytes], header: str | None) -> bool:
    scheme, given = _parsed(header)
    # Compare every key, each in constant time, so that the time taken reveals nothing about the keys.
    found = [hmac.compare_digest(given, key) for key in known]
    return scheme == "bearer" and any(found)
