"""Markdown tables of figures measured in rounds: medians with their range, and ratios pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

#: The figures of each contender in the rounds' order.
Rounds = Mapping[str, Sequence[float]]


def comparison(first_column: str, names: Sequence[str], rows: Mapping[str, Rounds]) -> list[str]:
    """A line for each row; the first contender of ``names`` is compared with each of the others.

    ``rows`` has each row's name and its figures.
    """
    head = [first_column, *names, *(f"{names[0]} / {name}" for name in names[1:])]
    return table(head, [[row, *_cells(names, figures)] for row, figures in rows.items()])


def _cells(names: Sequence[str], figures: Rounds) -> list[str]:
    first, *others = names
    ratios = [ratios_of(figures[first], figures[name]) for name in others]
    return [*(spread(figures[name], 0) for name in names), *(spread(ratio, 2) for ratio in ratios)]


def ratios_of(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """The ratio ``of / to`` of each round."""
    return [a / b for a, b in zip(of, to, strict=True)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; all columns but the first are numbers."""
    ruler = ["---"] + ["---:"] * (len(head) - 1)
    return ["| " + " | ".join(row) + " |" for row in (head, ruler, *rows)]


def spread(values: Sequence[float], digits: int) -> str:
    """The median and the range."""
    middle, low, high = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"**{middle}** ({low}–{high})"  # noqa: RUF001 - a range in prose
