"""Special tokens are found as llama.cpp finds them, in linear time, and not in what a user wrote."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.engine.llama.vocabulary.special_tokens import SpecialToken
from tasks.engine.tokens.partition import TooManyError, partition

pytestmark = pytest.mark.unit


def special(token: int, text: str, is_control: bool = True, **strips: bool) -> SpecialToken:
    return SpecialToken(token, text, is_control, **strips)


def ordered(*specials: SpecialToken) -> list[SpecialToken]:
    return sorted(specials, key=lambda each: -len(each.text))


END, START, DEFINED = special(1, "<end>"), special(2, "<start>"), special(3, "<d>", is_control=False)
SPECIALS = ordered(END, START, DEFINED)


def reference(text: str, specials: list[SpecialToken]) -> list[int | str]:
    """What llama.cpp does: one special token after the other, in every part that is still text."""
    pieces: list[int | str] = [text] if text else []
    for each in specials:
        done: list[int | str] = []
        for piece in pieces:
            if isinstance(piece, int):
                done.append(piece)
                continue
            rest = piece
            while (at := rest.find(each.text)) >= 0:
                left, rest = rest[:at], rest[at + len(each.text) :]
                left = left.rstrip(" \t\n\v\f\r") if each.strips_left else left
                rest = rest.lstrip(" \t\n\v\f\r") if each.strips_right else rest
                done += [left, each.id] if left else [each.id]
            done += [rest] if rest else []
        pieces = done
    return pieces


@settings(deadline=None)
@given(st.text(alphabet="ab<> \n", max_size=40), st.data())
def test_it_finds_what_llama_cpp_finds(text, data):
    spellings = data.draw(st.lists(st.text(alphabet="ab<>", min_size=1, max_size=4), max_size=6, unique=True))
    flags = st.booleans()
    specials = ordered(
        *(
            special(n, spelling, strips_left=data.draw(flags), strips_right=data.draw(flags))
            for n, spelling in enumerate(spellings)
        )
    )
    assert partition(text, specials, limit=len(text)) == reference(text, specials)


def test_a_marked_control_token_is_text_and_a_defined_token_is_still_found():
    text, marked = "<start>a<end>b<d><end>", "<start>\ud800\ud801end\ud802b\ud801d\ud802<end>"
    assert partition(text, SPECIALS, limit=9, marked=marked) == [2, "a<end>b", 3, 1]


def test_too_many_end_the_search():
    with pytest.raises(TooManyError) as found:
        partition("<end>" * 5, SPECIALS, limit=4)
    assert found.value.num == 5


class Counted(str):
    """A text that counts the characters that searches in it may look at."""

    looked = 0

    def find(self, *arguments, **named):
        at = super().find(*arguments, **named)
        start = arguments[1]
        Counted.looked += (at if at >= 0 else len(self)) - start + len(arguments[0])
        return at


def looked_at(num: int) -> int:
    Counted.looked = 0
    partition(Counted("<end>" * num), [END], limit=num)
    return Counted.looked


def test_twice_the_text_takes_twice_the_work():
    assert looked_at(20_000) <= 2 * looked_at(10_000) + 100
