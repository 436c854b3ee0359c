"""Prompt lookup: guess a sequence's next tokens from what followed the same tokens earlier in it; pure.

Answers that repeat their prompt (a summary, edited code) are guessed well. A guess is checked in the same
batch as the next token. The longer the match, the more a guess is trusted: a long match means that the answer
is copying. Source of the method: A. Saxena, "Prompt Lookup Decoding", 2023. The trust values are our own,
chosen by replaying summaries and chats of the default model with the step costs of several machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.engine.costs.shape import MIN_GAIN, StepCosts

#: This many tokens must match an earlier place; the tokens that followed there are the guess.
NGRAM = 3
#: Most guessed tokens in one batch.
MAX_DRAFT = 7
#: How often a guess is right, by the length of its match in tokens. These are the rates at first; they count
#: as much as PRIOR_WEIGHT guesses made for the sequence. A longer match counts as one of LONGEST tokens.
PRIOR = {3: 0.5, 4: 0.6, 5: 0.7, 6: 0.75, 7: 0.8, 8: 0.85, 9: 0.9, 10: 0.9, 11: 0.9, 12: 0.9}
PRIOR_WEIGHT = 6.0
LONGEST = max(PRIOR)


class PromptLookup:
    """The guesses for one sequence, and how often guesses were right, by the length of their match."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        #: Where the guess begins, and how many tokens before that place equal the sequence's last tokens.
        self._start: int | None = None
        self._length = 0
        self._hits = {length: PRIOR_WEIGHT * rate for length, rate in PRIOR.items()}
        self._guesses = dict.fromkeys(PRIOR, PRIOR_WEIGHT)
        for token in tokens:
            self._add(token)
        self._match()

    def extend(self, token: int) -> None:
        """Add the sequence's next token, and note whether its guess was right."""
        if self._start is not None:
            self._guesses[self._length] += 1
            self._hits[self._length] += self._tokens[self._start] == token
        self._add(token)
        self._match()

    def draft(self, size: int) -> list[int]:
        """At most ``size`` guesses."""
        return [] if self._start is None else self._tokens[self._start : self._start + size]

    def trust(self) -> list[float]:
        """For each of :data:`MAX_DRAFT` guesses, the chance that it is right if all guesses before it are."""
        if self._start is None:
            return []
        lengths = (min(self._length + i, LONGEST) for i in range(MAX_DRAFT))
        return [self._hits[length] / self._guesses[length] for length in lengths]

    def _add(self, token: int) -> None:
        # The n-gram before this token is stored only now, so that it never finds itself in a lookup.
        if len(self._tokens) >= NGRAM:
            self._after[tuple(self._tokens[-NGRAM:])] = len(self._tokens)
        self._tokens.append(token)

    def _match(self) -> None:
        tokens = self._tokens
        self._start = start = self._after.get(tuple(tokens[-NGRAM:]))
        if start is None:
            return
        length, end = NGRAM, len(tokens)
        while length < min(LONGEST, start) and tokens[start - length - 1] == tokens[end - length - 1]:
            length += 1
        self._length = length


def draft_size(trust: Sequence[float], costs: StepCosts) -> int:
    """How many guesses to check with a lone sequence's next token; 0 if checking doesn't pay.

    A batch of k + 1 rows gives 1 + p₁ + p₁p₂ + … tokens on average, where pᵢ is the probability that guess i
    is right if all guesses before it are.
    """
    best, fewest_ms = 0, costs.decode_ms(1) * (1 - MIN_GAIN)
    expected = all_right = 1.0
    for size, is_right in enumerate(trust[: costs.max_rows - 1], start=1):
        all_right *= is_right
        expected += all_right
        ms = costs.decode_ms(size + 1) / expected
        if ms < fewest_ms:
            best, fewest_ms = size, ms
    return best
