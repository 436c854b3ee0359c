"""What a step costs by its size, and the best way to decode a number of rows. Pure.

Kernels that work on several rows at a time make some sizes cheaper than smaller ones: then a row of padding
pays, or two smaller steps do, or that some sequences pause for a step. Which, depends on the machine, the
threads and the encoding; so it is measured (:mod:`tasks.engine.costs.measure`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

#: A shape must be so much cheaper than the plain one to be chosen; below that it is noise.
MIN_GAIN = 0.04
#: The same for a shape that leaves some sequences out. More, since for other slots llama.cpp builds its graph
#: anew, and since sequences are moved.
MIN_PAUSE_GAIN = 0.08


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Measured milliseconds: ``decode`` holds (rows, ms) by rows, ``prefill_ms`` is per prompt token."""

    decode: tuple[tuple[int, float], ...]
    prefill_ms: float

    def decode_ms(self, rows: int) -> float:
        """Milliseconds of a step of ``rows`` next tokens, interpolated between measured sizes."""
        return _between(self.decode, rows)

    def quickest(self, other: StepCosts) -> StepCosts:
        """Of each size the lesser time."""
        mine, others = dict(self.decode), dict(other.decode)
        both = {**others, **mine}
        decode = ((rows, min(ms, others.get(rows, ms))) for rows, ms in sorted(both.items()))
        return StepCosts(tuple(decode), min(self.prefill_ms, other.prefill_ms))

    @property
    def max_rows(self) -> int:
        """The largest size measured."""
        return self.decode[-1][0]


def _between(measured: tuple[tuple[int, float], ...], rows: int) -> float:
    """Linear between measured sizes, proportional above them."""
    sizes = [size for size, _ in measured]
    at = bisect_left(sizes, rows)
    if at == len(sizes):
        size, ms = measured[-1]
        return ms * rows / size
    size, ms = measured[at]
    if size == rows or at == 0:
        return ms
    low, low_ms = measured[at - 1]
    return low_ms + (ms - low_ms) * (rows - low) / (size - low)


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences decoded in one batch: ``rows`` of them, and ``padding`` rows thrown away."""

    rows: int
    padding: int = 0


def plain(rows: int) -> tuple[Group, ...]:
    """All rows in one batch."""
    return (Group(rows),) if rows else ()


@lru_cache(maxsize=4096)
def cheapest(rows: int, costs: StepCosts) -> tuple[Group, ...]:
    """The groups to decode all of ``rows`` sequences in: one batch, padded, or several; the least time."""
    return _cheapest_of_all(rows, costs)[rows]


@lru_cache(maxsize=4096)
def quickest(rows: int, costs: StepCosts) -> tuple[Group, ...]:
    """The groups that make most tokens per millisecond of ``rows`` sequences; they may leave some out.

    Never half of them, since a size that fits twice is taken twice. So one sequence more never makes fewer
    tokens per millisecond, but for :data:`MIN_PAUSE_GAIN`.
    """
    shapes = _cheapest_of_all(rows, costs)
    everyone = shapes[rows]
    options = [shapes[size] * (rows // size) for size in range(1, rows + 1)]
    best = max(options, key=lambda groups: (tokens_per_ms(groups, costs), num_rows(groups)), default=())
    is_worth_it = tokens_per_ms(best, costs) * (1 - MIN_PAUSE_GAIN) > tokens_per_ms(everyone, costs)
    return best if is_worth_it else everyone


def num_rows(groups: tuple[Group, ...]) -> int:
    """Sequences decoded in these groups."""
    return sum(group.rows for group in groups)


def tokens_per_ms(groups: tuple[Group, ...], costs: StepCosts) -> float:
    """Tokens that a step of these groups makes, by what it costs; 0 without groups."""
    ms = sum(costs.decode_ms(group.rows + group.padding) for group in groups)
    return num_rows(groups) / ms if groups else 0.0


def _cheapest_of_all(rows: int, costs: StepCosts) -> list[tuple[Group, ...]]:
    """The cheapest groups for every number of sequences from none to ``rows``.

    Dynamic programming over the size of the last group.
    """
    padded = [_padded(size, costs) for size in range(1, rows + 1)]
    best: list[tuple[float, tuple[Group, ...]]] = [(0.0, ())]
    for _ in range(rows):
        options = (
            (before[0] + ms, (*before[1], group))
            for (ms, group), before in zip(padded, reversed(best), strict=False)
        )
        best.append(min(options, key=lambda option: (option[0], len(option[1]))))
    return [
        groups if ms < costs.decode_ms(count) * (1 - MIN_GAIN) else plain(count)
        for count, (ms, groups) in enumerate(best)
    ]


def _padded(rows: int, costs: StepCosts) -> tuple[float, Group]:
    """The cheapest batch that has room for ``rows``."""
    sizes = range(rows, max(rows, costs.max_rows) + 1)
    size = min(sizes, key=lambda each: (costs.decode_ms(each), each))
    return costs.decode_ms(size), Group(rows, size - rows)
