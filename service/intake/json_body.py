"""Parses a body's bytes into a JSON object; no other module sees a raw body."""

from __future__ import annotations

import json
from typing import Any

from service.errors import ApiError, bad_request


def parse_object(body: bytes, content_type: str | None) -> dict[str, Any]:
    """Parse a request's body.

    Raises:
        ApiError: 415 for another content type; 400 for a body that isn't UTF-8, isn't JSON, is
            nested too deeply, repeats a key, or isn't an object.
    """
    _check_content_type(content_type)
    value = _parse(body)
    if not isinstance(value, dict):
        raise _invalid("The body must be a JSON object.")
    return value


def _parse(body: bytes) -> Any:
    try:
        # NaN and Infinity aren't JSON but pass here: the schema refuses them and names the field.
        return json.loads(body.decode(), object_pairs_hook=_unique)
    except UnicodeDecodeError:
        raise _invalid("The body is not valid UTF-8.") from None
    except RecursionError:
        raise _invalid("The body is nested too deeply.") from None
    except ValueError as error:  # also for numbers with more digits than Python converts
        raise _invalid(f"The body is not valid JSON: {error}") from None


def _check_content_type(content_type: str | None) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise ApiError(415, "unsupported_media_type", "Send JSON, with Content-Type: application/json.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _invalid(message: str) -> ApiError:
    return bad_request(message, code="invalid_json")
