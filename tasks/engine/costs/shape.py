"""What a step costs by its size; pure.

With kernels that work on four rows at a time, a step of four rows can be cheaper than a step of three; then a
row of padding pays. Whether it pays depends on the machine, the threads and the encoding, so it is measured
(:mod:`tasks.engine.costs.measure`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

#: Padding or a draft must save at least this fraction of the time to be chosen; less may be noise.
MIN_GAIN = 0.04


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Measured milliseconds: ``decode`` holds (rows, ms) by rows, ``prefill_ms`` is per prompt token."""

    decode: tuple[tuple[int, float], ...]
    prefill_ms: float

    def decode_ms(self, rows: int) -> float:
        """Milliseconds of a step of ``rows`` next tokens, interpolated between measured sizes."""
        return _between(self.decode, rows)

    def quickest(self, other: StepCosts) -> StepCosts:
        """The smaller time of the two for each size, and for prefill."""
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


@lru_cache(maxsize=4096)
def padding(rows: int, costs: StepCosts) -> int:
    """Rows to add to a step of ``rows`` next tokens if the larger step is cheaper; else 0."""
    if not rows:
        return 0
    sizes = range(rows, max(rows, costs.max_rows) + 1)
    best = min(sizes, key=lambda size: (costs.decode_ms(size), size))
    is_worth_it = costs.decode_ms(best) < costs.decode_ms(rows) * (1 - MIN_GAIN)
    return best - rows if is_worth_it else 0
