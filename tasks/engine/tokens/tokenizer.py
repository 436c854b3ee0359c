"""Turns a text into tokens as llama.cpp does, but refuses what can't fit, and takes linear time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tasks.engine.llama.vocabulary.special_tokens import SpecialToken
from tasks.engine.tokens.partition import TooManyError, partition

#: As many special tokens llama.cpp finds in a few milliseconds, although its time is quadratic.
FEW = 512


class Vocabulary(Protocol):
    """What a tokenizer needs of a model."""

    @property
    def special_tokens(self) -> Sequence[SpecialToken]:
        """The special tokens, the longest spelling first."""

    @property
    def longest_token(self) -> int | None:
        """Bytes of text that one token stands for at most; ``None``: any number."""

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """The tokens that the model wants before and after a plain prompt."""

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """Token ids of ``text``."""


class TooLongError(Exception):
    """The text has at least ``num`` tokens, more than fit."""

    def __init__(self, num: int) -> None:
        super().__init__(num)
        self.num = num


class Tokenizer:
    """A vocabulary, and how many tokens may fit; several threads may use it."""

    def __init__(self, vocabulary: Vocabulary, max_tokens: int) -> None:
        self._vocabulary, self._max_tokens = vocabulary, max_tokens
        self._longest = vocabulary.longest_token
        self._begins = sorted({special.text[0] for special in vocabulary.special_tokens})

    @property
    def max_bytes(self) -> int | None:
        """A text of more bytes can't fit, whatever it is; ``None``: any may."""
        return None if self._longest is None else self._longest * self._max_tokens

    def encode(
        self, text: str, marked: str | None = None, check: Callable[[], None] = lambda: None
    ) -> list[int]:
        """The tokens of a text; a special token that is spelled in it becomes that token.

        Args:
            text: the text.
            marked: the text with other characters where no control token may be found; default: ``text``.
            check: called between pieces of the text; may raise something to break off.

        Raises:
            TooLongError: it has more tokens than fit. It may have more than were counted.
        """
        self._refuse_long(text)
        if marked is None and self._has_few(text):
            return self._vocabulary.tokenize(text, parse_special=True)
        tokens: list[int] = []
        for piece in self._pieces(text, marked):
            check()
            tokens += self._of(piece)
            if len(tokens) > self._max_tokens:
                raise TooLongError(len(tokens))
        return tokens

    def framed(self, tokens: list[int]) -> list[int]:
        """The tokens of a plain prompt, with what the model wants around them."""
        before, after = self._vocabulary.frame
        return [*before, *tokens, *after]

    def _refuse_long(self, text: str) -> None:
        size = len(text.encode())
        if self._longest and size > self._longest * self._max_tokens:
            raise TooLongError(-(-size // self._longest))

    def _has_few(self, text: str) -> bool:
        return sum(map(text.count, self._begins)) <= FEW

    def _pieces(self, text: str, marked: str | None) -> list[int | str]:
        try:
            return partition(text, self._vocabulary.special_tokens, self._max_tokens, marked)
        except TooManyError as error:
            raise TooLongError(error.num) from error

    def _of(self, piece: int | str) -> list[int]:
        return [piece] if isinstance(piece, int) else self._vocabulary.tokenize(piece, parse_special=False)
