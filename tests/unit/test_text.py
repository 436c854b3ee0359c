"""Token pieces to text: characters stay whole, stop strings never show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engine.text import TextAssembler

pytestmark = pytest.mark.unit


def cut(raw: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(raw[at : at + size])
        at += size
    return [*pieces, raw[at:]]


@given(st.text(), st.lists(st.integers(0, 5)))
def test_any_cut_of_utf8_gives_the_whole_text(text, sizes):
    assembler = TextAssembler()
    shown = [assembler.feed(piece) for piece in cut(text.encode(), sizes)]
    assert "".join(shown) + assembler.finish() == text


@given(st.binary(), st.lists(st.integers(0, 5)))
def test_invalid_bytes_are_replaced_as_in_one_decode(raw, sizes):
    assembler = TextAssembler()
    shown = "".join(assembler.feed(piece) for piece in cut(raw, sizes)) + assembler.finish()
    assert shown == raw.decode("utf-8", "replace")


def test_an_emoji_cut_in_four_is_held_back_until_it_is_whole():
    assembler = TextAssembler()
    first, *rest = [assembler.feed(bytes([byte])) for byte in "🦙".encode()]
    assert (first, rest) == ("", ["", "", "🦙"])


def test_a_cut_character_at_the_end_becomes_a_replacement():
    assembler = TextAssembler()
    assert assembler.feed("é".encode()[:1]) == ""
    assert assembler.finish() == "\ufffd"


@given(
    st.text("ab\n", max_size=30),
    st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 3)),
)
def test_text_ends_before_the_first_stop_however_it_is_cut(text, stops, sizes):
    assembler = TextAssembler(stops)
    shown = ""
    for piece in cut(text.encode(), sizes):
        shown += assembler.feed(piece)
        if assembler.is_stopped:
            break
    shown += assembler.finish()
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert assembler.is_stopped == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert not any(stop in shown for stop in stops)
        assert text.startswith(shown)


def test_what_only_began_like_a_stop_is_shown_at_the_end():
    assembler = TextAssembler(["END"])
    assert assembler.feed(b"the EN") == "the "
    assert assembler.finish() == "EN"


def test_the_longest_beginning_of_a_stop_is_held_back():
    assembler = TextAssembler(["aab"])
    assert assembler.feed(b"aaa") == "a"
    assert assembler.feed(b"b!") == ""
    assert assembler.is_stopped
