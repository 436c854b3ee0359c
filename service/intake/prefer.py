"""Reads ``respond-async`` and ``wait=N`` from the ``Prefer`` header.

Other preferences are ignored, as RFC 7240 asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from service.errors import bad_request

_PREFERENCE = re.compile(
    r"""\s*(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)
        (?:\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^\s;,"]*)))?
        (?P<parameters>(?:\s*;(?:[^,"]|"(?:[^"\\]|\\.)*")*)?)\s*(?:,|$)""",
    re.VERBOSE,
)


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
        for match in _PREFERENCE.finditer(header or ""):
            value = match["quoted"] if match["quoted"] is not None else match["token"] or ""
            found.setdefault(match["name"].lower(), value)
        wait_s = _seconds(found["wait"], max_wait_s) if "wait" in found else None
        return cls("respond-async" in found, wait_s)

    @property
    def applied(self) -> str:
        """The value of ``Preference-Applied``; empty when no preference was applied."""
        wait = () if self.wait_s is None else (f"wait={self.wait_s:.0f}",)
        return ", ".join((*(("respond-async",) if self.is_async else ()), *wait))


def _seconds(text: str, max_wait_s: float) -> float:
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"Prefer: wait={text[:20]!r} is not a whole number of seconds.", "Prefer")
    return min(float(text[:9]), max_wait_s)
