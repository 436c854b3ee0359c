"""Marks the characters that a user wrote, so that they can't be taken for the chat template's own; pure.

A template may cut, join or trim a user's text, so where that text ends up is known only if each of its
characters tells. A mark replaces a character by a lone surrogate, one for one: no valid text has one, and
templates pass it on as any other character.
"""

from __future__ import annotations

from collections.abc import Iterable

from tasks.engine.llama.vocabulary.special_tokens import SpecialToken

_FIRST_SURROGATE = 0xD800


class Marks:
    """Marks for the characters of which control tokens consist; white space is never marked."""

    def __init__(self, specials: Iterable[SpecialToken]) -> None:
        self._controls = [special.text for special in specials if special.is_control]
        characters = sorted({c for text in self._controls for c in text if not c.isspace()})
        self._marks = {ord(c): _FIRST_SURROGATE + place for place, c in enumerate(characters)}
        self._characters = {mark: c for c, mark in self._marks.items()}
        self._begins = sorted({text[0] for text in self._controls})
        self._beginnings = {text[:size] for text in self._controls for size in range(1, len(text))}

    def may_spell(self, text: str) -> bool:
        """Whether a user's text might become a control token, whatever a template cuts out of it.

        It can't without the first character of one; :meth:`is_beginning` finds where a template has that.
        """
        return any(character in text for character in self._begins)

    def is_beginning(self, text: str) -> bool:
        """Whether a text ends as a control token begins, so that what comes next may complete it."""
        longest = max(map(len, self._beginnings), default=0)
        return any(text[-size:] in self._beginnings for size in range(1, longest + 1))

    def mark(self, text: str) -> str:
        """The text with all marks."""
        return text.translate(self._marks)

    def mark_spelled(self, text: str) -> str:
        """The text with marks only where a whole control token is spelled."""
        for whole in self._controls:
            if whole in text:
                text = text.replace(whole, self.mark(whole))
        return text

    def unmark(self, text: str) -> str:
        """The text without marks."""
        return text.translate(self._characters)
