"""Whose turn it is where steps that leave some sequences out make more tokens per second. Pure.

Rows of a batch must be of neighbouring slots, or llama.cpp splits it. So either the first ones or the last
ones pause, by turns. Those in the middle never would, and any order of such windows that is fair to all is no
better than decoding all: so now and then two sequences change places.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.engine.load import Load

#: Tokens that one sequence may be behind another before they change places.
MAX_LAG = 4.0
#: With more cells to move they change places less often, so that it takes a few percent of the time: they may
#: be behind by a token for so many cells.
CELLS_PER_LAG = 64
#: Nobody pauses beside a sequence of more cells: moving them would take longer than a step.
MAX_CELLS = 256


def may_pause(decoding: Sequence[Load]) -> bool:
    """Whether some of ``decoding``, by slot, may pause: all are neighbours and their cells are few."""
    are_neighbours = not decoding or decoding[-1].slot - decoding[0].slot == len(decoding) - 1
    return are_neighbours and all(load.computed <= MAX_CELLS for load in decoding)


def pausing(decoding: Sequence[Load], num: int) -> Sequence[Load]:
    """The ``num`` that pause, half of all at most: the first or the last of ``decoding``, which is by slot.

    Those who have just paused don't; otherwise those with the least lag do.
    """
    ends = decoding[:num], decoding[len(decoding) - num :]
    return min(ends, key=lambda end: (sum(load.has_paused for load in end), sum(load.lag for load in end)))


def exchange(decoding: Sequence[Load], num: int) -> tuple[int, int] | None:
    """Slots of two that should change places where ``num`` pause at either end, if any: end and middle."""
    ends = [*decoding[:num], *decoding[len(decoding) - num :]]
    middle = decoding[num : len(decoding) - num]
    if not ends or not middle:
        return None
    behind, ahead = max(ends, key=lambda load: load.lag), min(middle, key=lambda load: load.lag)
    bound = max(MAX_LAG, (behind.computed + ahead.computed) / CELLS_PER_LAG)
    return (behind.slot, ahead.slot) if behind.lag - ahead.lag >= bound else None
