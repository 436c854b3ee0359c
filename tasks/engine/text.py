"""Turns token pieces into text: whole UTF-8 characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextAssembler:
    """Turns one sequence's pieces into text that is safe to show.

    A piece is bytes and may end inside a character; a stop string may span several pieces. An unfinished
    character, and text that may be the beginning of a stop string, are held back. Invalid bytes become
    U+FFFD, as if all bytes were decoded at once.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._held = ""
        #: Whether a stop string was found; no text comes after it.
        self.is_stopped = False

    def feed(self, piece: bytes) -> str:
        """Add a piece; returns the text that is now safe to show."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """The text still held back; an unfinished character becomes U+FFFD."""
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
    """Length of the longest end of ``text`` that is a beginning of ``stop``."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
