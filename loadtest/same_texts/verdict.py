"""Finds where two builds' texts begin to differ, and whether that is a near-tie of two tokens."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

#: The likeliest tokens of one step of a text with their logits, best first; the first one is generated.
Step = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that differs: each build's choice, and its lead over the other build's choice.

    A lead is in logits; it is ``None`` when the other build's choice is not among the likeliest tokens.
    """

    prompt: str
    step: int
    tokens: tuple[int, int]
    logits: tuple[tuple[float, float | None], tuple[float, float | None]]

    @property
    def leads(self) -> tuple[float | None, float | None]:
        """The difference of the two logits in each build."""
        first, second = (None if other is None else own - other for own, other in self.logits)
        return first, second

    def is_near_tie(self, tie: float) -> bool:
        """Whether the two logits are at most ``tie`` apart in both builds."""
        return all(lead is not None and lead <= tie for lead in self.leads)


@dataclass(frozen=True, slots=True)
class Texts:
    """The comparison of two builds' texts for the same prompts."""

    labels: tuple[str, str]
    kernels: tuple[str, str]
    pieces: Mapping[int, str]
    num_texts: int
    differences: tuple[Difference, ...]
    shifts: tuple[float, ...]

    def is_same(self, tie: float) -> bool:
        """Whether all differences are near-ties."""
        return all(difference.is_near_tie(tie) for difference in self.differences)


def difference(prompt: str, a: Sequence[Step], b: Sequence[Step]) -> Difference | None:
    """The first difference between two texts; ``None`` if there is none."""
    for number, (one, other) in enumerate(zip(a, b, strict=False)):
        tokens = one[0][0], other[0][0]
        if tokens[0] != tokens[1]:
            under_a = one[0][1], dict(one).get(tokens[1])
            under_b = other[0][1], dict(other).get(tokens[0])
            return Difference(prompt, number, tokens, (under_a, under_b))
    return None


def shifts_of(a: Sequence[Step], b: Sequence[Step]) -> Iterator[float]:
    """By how much the generated token's logit differs at each step, until the texts differ."""
    for one, other in zip(a, b, strict=False):
        if one[0][0] != other[0][0]:
            return
        yield abs(one[0][1] - other[0][1])


def report(file: str, texts: Texts, tie: float) -> Iterator[str]:
    """The report's lines for people."""
    a, b = texts.labels
    yield f"{file}: {a} ({texts.kernels[0]}) and {b} ({texts.kernels[1]})"
    equal = texts.num_texts - len(texts.differences)
    yield f"  {equal} of {texts.num_texts} texts are equal"
    if texts.shifts:
        middle, most = statistics.median(texts.shifts), max(texts.shifts)
        yield f"  the same token's logit differs by {middle:.4f} (median), {most:.4f} at most"
    for found in texts.differences:
        yield from _told(found, texts, tie)


def _told(found: Difference, texts: Texts, tie: float) -> Iterator[str]:
    verdict = "a near-tie" if found.is_near_tie(tie) else "NOT a near-tie"
    yield f"  {found.prompt!r}, token {found.step + 1}: {verdict}"
    own = found.tokens, found.tokens[::-1]
    for label, (mine, other), logits, lead in zip(texts.labels, own, found.logits, found.leads, strict=True):
        names = f"{texts.pieces[mine]!r} {logits[0]:.4f}", f"{texts.pieces[other]!r}"
        rest = f"{logits[1]:.4f}, {lead:.4f} apart" if lead is not None else "not among the likeliest"
        yield f"    {label}: {names[0]}, {names[1]} {rest}"
