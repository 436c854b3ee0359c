"""From token pieces to text: whole UTF-8 characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextAssembler:
    """Turns one sequence's pieces into text that is safe to show.

    Pieces are bytes that may end inside a character, and a stop string may straddle pieces; what could
    still become either is held back. Invalid bytes become U+FFFD, as in one decode of the whole.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._held = ""
        #: Whether a stop string was met; nothing comes after it.
        self.is_stopped = False

    def feed(self, piece: bytes) -> str:
        """The text that has become safe with this piece."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """The rest at the end: a cut character becomes U+FFFD, a half stop string was text after all."""
        text = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, new: str) -> str:
        if self.is_stopped:
            return ""
        if not self._stops:
            return new
        text = self._held + new
        cut = _first_stop(text, self._stops)
        if cut is not None:
            self.is_stopped, self._held = True, ""
            return text[:cut]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return min(found, default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
