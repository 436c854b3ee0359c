"""Counts and histograms as plain numbers in memory that children share with their parent.

A child's row outlives the child, and its replacement goes on counting in the same row: totals only grow,
whichever process dies. Adding costs a fraction of a microsecond; nothing is locked, since only one process
at a time uses a row.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Cells: TypeAlias = "list[float] | memoryview[float]"

#: Bytes of a number.
_DOUBLE = 8
#: Most rows; memory that is not touched costs nothing.
MAX_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each count and histogram has its numbers in a row.

    A histogram has one number for each bucket, one for the values above all buckets, and the sum.
    """

    counters: tuple[str, ...]
    histograms: Mapping[str, Sequence[float]]

    @property
    def size(self) -> int:
        """How many numbers a row has."""
        return len(self.counters) + sum(len(bounds) + 2 for bounds in self.histograms.values())

    def starts(self) -> Iterator[tuple[str, int]]:
        """Each histogram's name, and the place of its first number."""
        start = len(self.counters)
        for name, bounds in self.histograms.items():
            yield name, start
            start += len(bounds) + 2


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram's state: how many values were up to each bound, how many there were, and their sum."""

    cumulative: tuple[tuple[float, float], ...]
    num: float
    total: float


class Tally:
    """Adds to one row and reads it. Raises ``KeyError`` on names that the layout lacks."""

    def __init__(self, layout: Layout, cells: Cells | None = None) -> None:
        """``cells``: the row's numbers; default: new ones."""
        self._cells: Cells = [0.0] * layout.size if cells is None else cells
        self._counters = {name: place for place, name in enumerate(layout.counters)}
        self._histograms = {name: (start, layout.histograms[name]) for name, start in layout.starts()}

    def add(self, counter: str, number: float = 1) -> None:
        """Add to a counter."""
        self._cells[self._counters[counter]] += number

    def observe(self, histogram: str, value: float) -> None:
        """Put a value into its bucket."""
        start, bounds = self._histograms[histogram]
        self._cells[start + bisect_left(bounds, value)] += 1
        self._cells[start + len(bounds) + 1] += value

    def counts(self, names: Iterable[str]) -> dict[str, int]:
        """The values of these counters."""
        return {name: int(self._cells[self._counters[name]]) for name in names}

    def distribution(self, histogram: str) -> Distribution:
        """A histogram's present state."""
        start, bounds = self._histograms[histogram]
        so_far, cumulative = 0.0, []
        for place, bound in enumerate(bounds, start):
            so_far += self._cells[place]
            cumulative.append((bound, so_far))
        above, total = self._cells[start + len(bounds)], self._cells[start + len(bounds) + 1]
        return Distribution(tuple(cumulative), so_far + above, total)


class SharedTallies:
    """A row for each child. Make it before forking; each child takes the row with its number."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        memory = mmap.mmap(-1, MAX_ROWS * layout.size * _DOUBLE)
        self._cells = memoryview(memory).cast("d")

    def row(self, index: int) -> Tally:
        """The row of child ``index``. Raises ``IndexError`` from :data:`MAX_ROWS` on."""
        return Tally(self._layout, self._row(index))

    def total(self, num_rows: int) -> Tally:
        """The sum of the first rows, at this moment."""
        rows = [self._row(index) for index in range(num_rows)]
        return Tally(self._layout, [sum(numbers) for numbers in zip(*rows, strict=True)] if rows else None)

    def _row(self, index: int) -> memoryview[float]:
        if not 0 <= index < MAX_ROWS:
            raise IndexError(f"a worker counts for {MAX_ROWS} children at most, and this is number {index}")
        size = self._layout.size
        return self._cells[index * size : (index + 1) * size]
