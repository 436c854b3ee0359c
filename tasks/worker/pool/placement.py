"""Which child computes one more request at the least cost. Pure; standard library and the engine's costs.

Children with work share the worker's threads. Whether requests are better together, in a child that then has
all threads, or spread over children with a share each, depends on what steps of each size cost with each
number of threads: with kernels that work on four rows at a time, four rows may cost as much as two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tasks.engine.costs.shape import padding
from tasks.engine.costs.table import CostTable

#: Speeds that differ by less are the same: measuring is no more exact.
NOISE = 0.04
#: Further requests that are thought of where speeds are the same: enough to fill kernels of four rows.
AHEAD = 3


@dataclass(frozen=True, slots=True)
class Crew:
    """A worker's children: how many ``slots`` each has, and ``threads`` all of them together."""

    slots: int
    threads: int


def advised(taken: Mapping[int, int], crew: Crew, costs: CostTable | None) -> Collection[int]:
    """The children to which the next request may go as well as to any, by how many requests each has.

    Of those with room: all that the worker is quickest with, and of these the ones that promise most with a
    few requests more. Without costs, or with room nowhere, it is all.
    """
    roomy = [child for child, num in taken.items() if num < crew.slots]
    if costs is None or len(roomy) <= 1:
        return roomy or taken
    # Children with equally many requests are the same.
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
    """Speeds with one request more, two and so on, all in whichever child makes that quickest, added up.

    Requests stay where they are. So where two are no quicker together than apart, but four would be, this
    keeps the way there open.
    """
    return sum(max(_grown(rows, more, crew, costs), default=0.0) for more in range(1, AHEAD + 1))


def _grown(rows: tuple[int, ...], more: int, crew: Crew, costs: CostTable) -> Iterator[float]:
    """The speeds with so many more requests in one of the children that have room for them."""
    for num in set(rows):
        if num + more <= crew.slots:
            yield tokens_per_s(_with(rows, num, more), crew.threads, costs)


def _with(rows: tuple[int, ...], num: int, more: int) -> tuple[int, ...]:
    """The loads when one of those with ``num`` requests gets some more."""
    at = rows.index(num)
    return (*rows[:at], num + more, *rows[at + 1 :])


def _best(values: Mapping[int, float]) -> Collection[int]:
    """Those with the highest value, or one that differs from it by noise only."""
    least = max(values.values()) * (1 - NOISE)
    return [key for key, value in values.items() if value >= least]
