"""Measure what steps of each size cost on a context, with each number of threads that it may get."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from math import inf

from tasks.engine.cost_table import CostTable
from tasks.engine.costs import StepCosts
from tasks.engine.model import Context, Row

logger = logging.getLogger(__name__)

#: Sizes measured, as far as there are slots and time, the telling ones first; those between are interpolated.
SIZES = (1, 2, 4, 8, 3, 16, 7, 6, 5, 12, 32, 24)
#: Rounds over all sizes; the quickest counts, so that what disturbs one round spoils no size.
ROUNDS = 3
#: Seconds after which no further size is measured.
BUDGET_S = 1.5
PROMPT_TOKENS = 64
#: How much slower than one thread several are when something else wants their cores; then nothing is kept.
DISTURBED = 3.0
#: Looks for whether that is so, and seconds between them: siblings that start are soon done.
LOOKS, LOOK_INTERVAL_S = 3, 0.1

#: Milliseconds by rows.
Times = dict[int, float]


def measure(context: Context, counts: Sequence[int]) -> tuple[CostTable, bool]:
    """Time steps on an empty context, and leave it empty. Takes about :data:`BUDGET_S` seconds.

    Beside the costs with so many threads, in ascending order: whether they are sound. Where something else
    wants the cores, one thread's are given for all.
    """
    if not _is_quiet(context, counts[-1]):
        logger.warning("the machine is busy: what a step costs is guessed from one thread's")
        return _table(_timed_all(context, counts[:1]), None), False
    times = _timed_all(context, counts)
    table = _table(times, _timed(context, _prompt(context)) / PROMPT_TOKENS)
    for threads, costs in table.by_threads:
        logger.info("step costs with %d threads (rows, ms): %s", threads, costs)
    return table, True


def _is_quiet(context: Context, threads: int) -> bool:
    """Whether so many threads find as many cores."""
    for look in range(LOOKS if threads > 1 else 0):
        time.sleep(LOOK_INTERVAL_S * min(look, 1))
        alone, together = (_quickest_row(context, number) for number in (1, threads))
        if together <= DISTURBED * alone:
            return True
    return threads == 1


def _quickest_row(context: Context, threads: int) -> float:
    context.use_threads(threads)
    return min(_timed(context, _rows(1)) for _ in range(2))


def _timed_all(context: Context, counts: Sequence[int]) -> dict[int, Times]:
    """The quickest of a few rounds; of the last number of threads the context is left with."""
    times: dict[int, Times] = {threads: {} for threads in counts}
    until = time.perf_counter() + BUDGET_S
    for _ in range(ROUNDS):
        for place, threads in enumerate(counts):
            now = time.perf_counter()
            context.use_threads(threads)
            _time_sizes(context, times[threads], now + (until - now) / (len(counts) - place))
    return times


def _time_sizes(context: Context, times: Times, until: float) -> None:
    """The first size always once, the others while there is time."""
    is_warm = False
    for size in SIZES:
        if size > context.slots or (times and time.perf_counter() >= until):
            continue
        if not is_warm:  # after a change of threads the first step takes longer
            is_warm = _timed(context, _rows(1)) > 0
        times[size] = min(times.get(size, inf), _timed(context, _rows(size)))


def _table(times: dict[int, Times], prefill_ms: float | None) -> CostTable:
    """Prefill is measured with all threads; with fewer it takes as much longer as the largest step does."""
    *_, most = times.values()
    largest = max(size for size in most if all(size in found for found in times.values()))
    row_ms = most[largest] / largest if prefill_ms is None else prefill_ms
    return CostTable(
        tuple(
            (threads, StepCosts(tuple(sorted(found.items())), row_ms * found[largest] / most[largest]))
            for threads, found in times.items()
        )
    )


def _rows(size: int) -> list[Row]:
    return [Row(1, PROMPT_TOKENS, slot, True) for slot in range(size)]


def _prompt(context: Context) -> list[Row]:
    return [Row(1, pos, 0, pos == PROMPT_TOKENS - 1) for pos in range(min(PROMPT_TOKENS, context.n_ctx - 1))]


def _timed(context: Context, rows: list[Row]) -> float:
    """Milliseconds to compute rows and choose their tokens, whose cells are then dropped."""
    started = time.perf_counter()
    context.decode(rows)
    context.greedy(sum(row.is_output for row in rows))
    elapsed = (time.perf_counter() - started) * 1e3
    for slot in {row.seq for row in rows}:
        context.trim(slot, 0)
    return elapsed
