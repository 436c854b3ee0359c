"""Guessing next tokens from what came before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engine.costs.shape import StepCosts
from tasks.engine.speculation import MAX_DRAFT, PromptLookup, draft_size

pytestmark = pytest.mark.unit

#: Eight rows cost about as much as two; and each row costs the same.
CHEAP = StepCosts(((1, 5.0), (2, 6.0), (8, 10.0)), 1.0)
LINEAR = StepCosts(tuple((rows, 5.0 * rows) for rows in range(1, 9)), 5.0)


def test_what_followed_the_same_tokens_is_the_guess():
    lookup = PromptLookup([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    assert lookup.draft(2) == [4, 5]
    assert lookup.draft(50) == [4, 5, 6, 9, 1, 2, 3]


def test_the_latest_occurrence_counts():
    assert PromptLookup([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).draft(1) == [5]


def test_new_tokens_make_no_guess():
    assert PromptLookup([1, 2, 3, 4, 5]).draft(4) == []
    assert PromptLookup([]).draft(4) == []


def test_a_long_match_is_trusted_more_than_a_short_one():
    copied = list(range(20))
    short, long = PromptLookup([*copied, *copied[7:10]]), PromptLookup([*copied, *copied[:10]])
    assert short.draft(1) == long.draft(1) == [10]
    assert short.trust()[0] < long.trust()[0]
    assert short.trust() == sorted(short.trust()), "each guess that is right makes the match longer"


def test_trust_follows_what_came():
    lookup = PromptLookup([1, 2, 3, 4] * 4)
    first = lookup.trust()[0]
    for token in [1, 2, 3, 4] * 10:
        lookup.extend(token)
    assert lookup.trust()[0] > first
    for token in range(100, 160):
        lookup.extend(token)
    assert lookup.trust() == [], "no guess"
    for token in range(60):
        for again in (7, 8, 9, 1000 + token):  # the token that follows is never the one that followed before
            lookup.extend(again)
    for token in (7, 8, 9):
        lookup.extend(token)
    assert lookup.trust()[0] < 0.1


def test_guesses_are_checked_only_where_it_pays():
    assert draft_size([0.95] * MAX_DRAFT, CHEAP) == MAX_DRAFT
    assert draft_size([], CHEAP) == draft_size([0.0], CHEAP) == 0
    assert draft_size([0.95] * MAX_DRAFT, LINEAR) == 0
    assert draft_size([0.95, 0.95, 0.0, 0.0], CHEAP) == 2


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 9))
def test_a_guess_is_always_a_piece_of_what_came_before(tokens, size):
    draft = PromptLookup(tokens).draft(size)
    assert len(draft) <= size
    assert not draft or any(tokens[i : i + len(draft)] == draft for i in range(len(tokens)))
