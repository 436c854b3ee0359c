"""Finds special tokens in a text as llama.cpp does, but in linear time; pure.

llama.cpp looks for one special token after the other, the longest first, and keeps the parts of the text in a
linked list. For each occurrence it walks the list from its beginning (``tokenizer_st_partition`` in
``llama-vocab.cpp``), so its time grows with the square of their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tasks.engine.llama.vocabulary.special_tokens import SpecialToken

#: What stands for characters that are taken: a lone surrogate, which no text and no token has.
_TAKEN = "\udfff"
#: The white space of C's ``isspace``.
_SPACE = " \t\n\v\f\r"
#: Characters by which absent tokens are ruled out together.
_HEAD = 4


class TooManyError(Exception):
    """The text has more special tokens than were allowed; ``num`` were found so far."""

    def __init__(self, num: int) -> None:
        super().__init__(num)
        self.num = num


@dataclass(frozen=True, slots=True)
class _Span:
    """An occurrence at ``start``; it takes the characters from ``first`` up to ``last``."""

    start: int
    first: int
    last: int
    token: int


def partition(
    text: str, specials: Sequence[SpecialToken], limit: int, marked: str | None = None
) -> list[int | str]:
    """Split a text into special tokens' ids and the text between them.

    Args:
        text: what is to be split.
        specials: the special tokens, the longest first.
        limit: most special tokens that may be found.
        marked: the text with other characters where no control token may be found; default: ``text``.

    Raises:
        TooManyError: there are more special tokens than ``limit``.
    """
    plain, control = text, text if marked is None else marked
    spans: list[_Span] = []
    for special in _present(text, specials):
        found = list(_occurrences(control if special.is_control else plain, special))
        spans += found
        if len(spans) > limit:
            raise TooManyError(len(spans))
        plain, control = (_without(each, found) for each in (plain, control))
    return list(_pieces(text, sorted(spans, key=lambda span: span.start)))


def _present(text: str, specials: Iterable[SpecialToken]) -> Iterator[SpecialToken]:
    """The tokens that may occur. A vocabulary may have thousands, most of which begin alike."""
    heads: dict[str, bool] = {}
    for special in specials:
        head = special.text[:_HEAD]
        if head not in heads:
            heads[head] = head in text
        if heads[head] and special.text in text:
            yield special


def _occurrences(text: str, special: SpecialToken) -> Iterator[_Span]:
    size, done = len(special.text), 0
    while (start := text.find(special.text, done)) >= 0:
        first, last = start, start + size
        while special.strips_left and first > done and text[first - 1] in _SPACE:
            first -= 1
        while special.strips_right and last < len(text) and text[last] in _SPACE:
            last += 1
        done = last
        yield _Span(start, first, last, special.id)


def _without(text: str, spans: Iterable[_Span]) -> str:
    """The text, in which the spans' characters can't be found any more."""
    parts: list[str] = []
    done = 0
    for span in spans:
        parts += text[done : span.first], _TAKEN * (span.last - span.first)
        done = span.last
    return "".join((*parts, text[done:]))


def _pieces(text: str, spans: Iterable[_Span]) -> Iterator[int | str]:
    done = 0
    for span in spans:
        if span.first > done:
            yield text[done : span.first]
        yield span.token
        done = max(done, span.last)
    if done < len(text):
        yield text[done:]
