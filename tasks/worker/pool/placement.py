"""Which child computes one more request at the least cost; pure.

Children with work share the worker's threads. Requests may be faster together in one child, which then has
all threads, or spread over several children. It depends on what steps of each size cost with each number of
threads: with kernels that work on four rows at a time, four rows may cost as much as two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tasks.engine.costs.shape import padding
from tasks.engine.costs.table import CostTable

#: Speeds that differ by less count as equal: measuring is no more exact.
NOISE = 0.04
#: Further requests to think of when speeds are equal: enough to fill kernels of four rows.
AHEAD = 3


@dataclass(frozen=True, slots=True)
class Crew:
    """A worker's children: how many ``slots`` each has, and ``threads`` all of them together."""

    slots: int
    threads: int


def advised(taken: Mapping[int, int], crew: Crew, costs: CostTable | None) -> Collection[int]:
    """Return the children that suit the next request best, given how many requests each child has.

    Of the children with room, these are the ones with which the worker is fastest, and of those the ones that
    promise most with a few more requests. Without costs, or if no child has room, all children suit.
    """
    roomy = [child for child, num in taken.items() if num < crew.slots]
    if costs is None or len(roomy) <= 1:
        return roomy or taken
    # Children with the same number of requests are interchangeable.
    rows = tuple(taken.values())
    options = {num: _with(rows, num, 1) for num in set(rows) if num < crew.slots}
    good = _best({num: tokens_per_s(then, crew.threads, costs) for num, then in options.items()})
    best = _best({num: _promise(options[num], crew, costs) for num in good})
    return [child for child in roomy if taken[child] in best]


def tokens_per_s(taken: Iterable[int], threads: int, costs: CostTable) -> float:
    """Tokens per second of all children together, each with so many requests."""
    return _tokens_per_s(tuple(sorted(num for num in taken if num)), threads, costs)


@lru_cache(maxsize=4096)
def _tokens_per_s(rows: tuple[int, ...], threads: int, costs: CostTable) -> float:
    share = costs.at(max(1, threads // max(1, len(rows))))
    return sum(1e3 * num / share.decode_ms(num + padding(num, share)) for num in rows)


def _promise(rows: tuple[int, ...], crew: Crew, costs: CostTable) -> float:
    """Add up the speeds with one more request, with two more, and so on, each time in the best child.

    Requests never move. So if two are no faster together than apart, but four would be, this leaves room for
    the four to meet.
    """
    return sum(max(_grown(rows, more, crew, costs), default=0.0) for more in range(1, AHEAD + 1))


def _grown(rows: tuple[int, ...], more: int, crew: Crew, costs: CostTable) -> Iterator[float]:
    """The speed for each child with room for so many more requests, if it gets them."""
    for num in set(rows):
        if num + more <= crew.slots:
            yield tokens_per_s(_with(rows, num, more), crew.threads, costs)


def _with(rows: tuple[int, ...], num: int, more: int) -> tuple[int, ...]:
    """The numbers of requests when a child that has ``num`` gets more."""
    at = rows.index(num)
    return (*rows[:at], num + more, *rows[at + 1 :])


def _best(values: Mapping[int, float]) -> Collection[int]:
    """The keys of the highest value, and of values that differ from it only by noise."""
    least = max(values.values()) * (1 - NOISE)
    return [key for key, value in values.items() if value >= least]
