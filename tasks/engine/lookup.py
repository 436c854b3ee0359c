"""Prompt lookup: guess a sequence's next tokens from what followed the same few tokens earlier in it. Pure.

Answers that repeat their prompt (a summary, code being edited) are guessed well, and a guess is checked in
the same batch as the next token. How well is learnt for nothing, by comparing each guess with what came.
Source of the method: A. Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from collections.abc import Iterable

from tasks.engine.costs import MIN_GAIN, StepCosts

#: Tokens that must be the same for what followed them to be a guess.
NGRAM = 3
#: Guessed tokens in one batch at most.
MAX_DRAFT = 7
#: Weight of the newest guess in the hit rate.
ALPHA = 0.15


class PromptLookup:
    """The guesses for one sequence, and how often they were right lately."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self.hit_rate = 0.0
        for token in tokens:
            self._add(token)

    def extend(self, token: int) -> None:
        """Take the sequence's next token in, and judge the guess there was for it."""
        guess = self.draft(1)
        if guess:
            self.hit_rate += ALPHA * ((guess[0] == token) - self.hit_rate)
        self._add(token)

    def draft(self, size: int) -> list[int]:
        """At most ``size`` tokens that followed the latest earlier occurrence of the last ones."""
        start = self._after.get(tuple(self._tokens[-NGRAM:]))
        return [] if start is None else self._tokens[start : start + size]

    def _add(self, token: int) -> None:
        # The n-gram before this token is entered only now, so that it never finds itself.
        if len(self._tokens) >= NGRAM:
            self._after[tuple(self._tokens[-NGRAM:])] = len(self._tokens)
        self._tokens.append(token)


def draft_size(hit_rate: float, costs: StepCosts) -> int:
    """How many guesses to check with a lone sequence's next token; 0 where it does not pay.

    With each guess right with probability p, a batch of k + 1 rows gives 1 + p + … + p^k tokens.
    """
    best, fewest_ms = 0, costs.decode_ms(1) * (1 - MIN_GAIN)
    expected = 1.0
    for size in range(1, min(MAX_DRAFT, costs.max_rows - 1) + 1):
        expected += hit_rate**size
        ms = costs.decode_ms(size + 1) / expected
        if ms < fewest_ms:
            best, fewest_ms = size, ms
    return best
