"""Parses a body's bytes into a JSON object; no other module sees a raw body."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.errors import ApiError, bad_request

#: The most objects and lists within each other; a deeper value could be read but not be written again.
MAX_DEPTH = 64
#: The most characters of a path that an error names.
MAX_PATH_CHARS = 200
#: JSON's escape of half a surrogate pair; only by it may a body in UTF-8 hold one.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_object(
    body: bytes, content_type: str | None, content_encoding: str | None = None
) -> dict[str, Any]:
    """Parse a request's body.

    Raises:
        ApiError: 415 for another content type, or a compressed body; 400 for a body that isn't UTF-8, isn't
            JSON, is nested too deeply, repeats a key, isn't an object, or has half of a surrogate pair.
    """
    _check_content_type(content_type)
    _check_encoding(content_encoding)
    text = _decode(body)
    value = _parse(text)
    if not isinstance(value, dict):
        raise _invalid("The body must be a JSON object.")
    if _SURROGATE.search(text) or text.count("{") + text.count("[") >= MAX_DEPTH:
        _check_members(value)
    return value


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")  # some programs begin every text with a byte order mark
    except UnicodeDecodeError:
        raise _invalid("The body is not valid UTF-8.") from None


def _parse(text: str) -> Any:
    try:
        # NaN and Infinity aren't JSON but pass here: the schema refuses them and names the field.
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # also for numbers with more digits than Python converts
        raise _invalid(f"The body is not valid JSON: {error}") from None


def _check_content_type(content_type: str | None) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise ApiError(415, "unsupported_media_type", "Send JSON, with Content-Type: application/json.")


def _check_encoding(content_encoding: str | None) -> None:
    if (content_encoding or "identity").strip().lower() != "identity":
        message = f"The body's encoding {content_encoding!r} is not supported; send it as it is."
        headers = {"Accept-Encoding": "identity"}
        raise ApiError(415, "unsupported_content_encoding", message, "Content-Encoding", more_headers=headers)


@dataclass(frozen=True, slots=True)
class _Member:
    """A value of the body; its path is made only if it is told, since all paths may be long."""

    value: Any
    depth: int = 1
    step: str = ""
    within: _Member | None = None

    @property
    def path(self) -> str:
        before = "" if self.within is None else self.within.path
        return (before + self.step).removeprefix(".")[:MAX_PATH_CHARS]

    def members(self) -> Iterator[_Member]:
        """The members of an object, with their names, or of a list."""
        if isinstance(self.value, list):
            for index, each in enumerate(self.value):
                yield _Member(each, self.depth + 1, f"[{index}]", self)
        elif isinstance(self.value, dict):
            for name, each in self.value.items():
                yield _Member(name, self.depth + 1, "", self)
                yield _Member(each, self.depth + 1, f".{name}", self)


def _check_members(body: dict[str, Any]) -> None:
    """Refuse what no later step could write: values nested too deeply, and half surrogate pairs."""
    left = [_Member(body)]
    while left:
        member = left.pop()
        if member.depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(member.value, str) and _is_half(member.value):
            message = f"{member.path}: the text has half of a surrogate pair (lone \\uD8xx)."
            raise bad_request(message, member.path, "invalid_unicode")
        left.extend(member.members())


def _is_half(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _too_deep() -> ApiError:
    return _invalid("The body is nested too deeply.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _invalid(message: str) -> ApiError:
    return bad_request(message, code="invalid_json")
