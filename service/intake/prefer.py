"""Reads ``respond-async`` and ``wait=N`` from the ``Prefer`` header.

Other preferences are ignored, as RFC 7240 asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from service.errors import bad_request

#: One piece of the header: a quoted string, to the header's end if it is never closed; a separator; other
#: text. No piece can be read in two ways, so reading takes as many steps as the header has characters.
_PIECE = re.compile(r'"(?:[^"\\]|\\.?)*"?|[,;]|[^",;]+', re.DOTALL)
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Prefer:
    """A client's preferences: to poll for the answer, and to wait up to ``wait_s`` seconds first."""

    is_async: bool = False
    wait_s: float | None = None

    @classmethod
    def parse(cls, header: str | None, max_wait_s: float) -> Self:
        """Read the header's value; if a name comes twice, the first counts.

        Raises:
            ApiError: 400 when ``wait`` isn't a whole number of seconds.
        """
        found: dict[str, str] = {}
        for preference in _preferences(header or ""):
            name, _, value = (part.strip() for part in preference.partition("="))
            if _NAME.fullmatch(name):
                found.setdefault(name.lower(), _unquoted(value))
        wait_s = _seconds(found["wait"], max_wait_s) if "wait" in found else None
        return cls("respond-async" in found, wait_s)

    @property
    def applied(self) -> str:
        """The value of ``Preference-Applied``; empty when no preference was applied."""
        wait = () if self.wait_s is None else (f"wait={self.wait_s:.0f}",)
        return ", ".join((*(("respond-async",) if self.is_async else ()), *wait))


def _preferences(header: str) -> Iterator[str]:
    """The preferences, each without its parameters."""
    pieces: list[str] = []
    in_parameters = False
    for piece in (*_PIECE.findall(header), ","):
        if piece == ",":
            yield "".join(pieces)
            pieces, in_parameters = [], False
        elif piece == ";":
            in_parameters = True
        elif not in_parameters:
            pieces.append(piece)


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    return re.sub(r"\\(.)", r"\1", value.strip('"'))


def _seconds(text: str, max_wait_s: float) -> float:
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"Prefer: wait={text[:20]!r} is not a whole number of seconds.", "Prefer")
    return min(float(text[:9]), max_wait_s)
