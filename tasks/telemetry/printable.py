"""Makes text of clients harmless for terminals and for programs that read a log line by line."""

from __future__ import annotations

import re

#: Control characters, which move the cursor or change colours; what ends a line for some programs; marks that
#: turn the direction of writing; halves of surrogate pairs, which no file can hold.
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """``text`` in one line, with Python's escapes for what is not to be printed."""
    return _UNPRINTABLE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """``text`` in its lines, of which all but the first are indented, so that none looks like a new entry."""
    return "\n  ".join(map(printable, text.split("\n")))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
