"""The ``Idempotency-Key`` header: a client's own name for a request, so that sending it again is safe.

As the IETF's draft has it (draft-ietf-httpapi-idempotency-key-header), except that a key without the quotes
of a structured string is taken too, since most clients send it so. The draft lets a server answer 409 while
the first request runs; here the second is answered with the first one's events.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from service.errors import ApiError, bad_request
from tasks.queue.submit import Key

#: Characters of a key at most.
MAX_CHARS = 255
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_PLAIN = re.compile(r"[\x21-\x7e]+")


def parse(header: str | None, credentials: str | None, path: str, body: dict[str, Any]) -> Key | None:
    """The header's key, or ``None`` without the header.

    Args:
        header: its value.
        credentials: the ``Authorization`` header's value: a key is its client's own.
        path: the endpoint's.
        body: the JSON that was sent; its whitespace and the order of its fields don't matter.

    Raises:
        ApiError: 400 for what is no key.
    """
    if header is None:
        return None
    asked = json.dumps([path, body], sort_keys=True, separators=(",", ":"))
    return Key(_digest(f"{credentials or ''}\n{_key(header.strip())}"), _digest(asked))


def reused() -> ApiError:
    """The key came with another body before."""
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
