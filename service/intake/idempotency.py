"""The ``Idempotency-Key`` header: a client's key for a request, which makes it safe to send again.

It follows the IETF's draft (draft-ietf-httpapi-idempotency-key-header). A key without the quotes of a
structured string is accepted too, since most clients send it that way. The draft lets a server answer 409
while the first request runs; this server answers the second request with the first one's events.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from service.errors import ApiError, bad_request
from tasks.queue.submit import Key

#: Maximum number of characters of a key.
MAX_CHARS = 255
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_PLAIN = re.compile(r"[\x21-\x7e]+")


def parse(header: str | None, credentials: str | None, path: str, body: dict[str, Any]) -> Key | None:
    """The header's key, or ``None`` if there is no header.

    Args:
        header: the header's value.
        credentials: the ``Authorization`` header's value; clients with different credentials share no keys.
        path: the endpoint's path.
        body: the JSON that was sent; its whitespace and the order of its fields don't matter.

    Raises:
        ApiError: 400 for an invalid key.
    """
    if header is None:
        return None
    asked = json.dumps([path, body], sort_keys=True, separators=(",", ":"))
    return Key(_digest(f"{credentials or ''}\n{_key(header.strip())}"), _digest(asked))


def reused() -> ApiError:
    """A 422: the key was used with another body before."""
    message = (
        "This Idempotency-Key was used for a request with another body; use a new key for a new request."
    )
    return ApiError(422, "idempotency_key_reused", message, "Idempotency-Key", is_final=True)


def _key(value: str) -> str:
    quoted = _QUOTED.fullmatch(value)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else value
    if not (_PLAIN.fullmatch(key.replace(" ", "_") if quoted else key) and len(key) <= MAX_CHARS):
        message = f"Idempotency-Key must be 1 to {MAX_CHARS} printable ASCII characters, such as a UUID."
        raise bad_request(message, "Idempotency-Key")
    return key


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
