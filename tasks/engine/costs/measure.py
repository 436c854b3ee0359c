"""Measure what steps of each size cost on a context, with each number of threads that it may get."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from math import inf

from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.engine.llama.context import Context, Row

logger = logging.getLogger(__name__)

#: Sizes measured, as far as there are slots and time, the telling ones first; those between are interpolated.
SIZES = (1, 2, 4, 8, 3, 16, 7, 6, 5, 12, 9, 32, 24)
#: Rounds over all sizes; the quickest counts, so that what disturbs one round spoils no size.
ROUNDS = 3
#: Seconds after which no further size is measured.
BUDGET_S = 1.5
#: Cells that each sequence has meanwhile, since reading them takes its part of a step.
PROMPT_TOKENS = 128
#: How much slower than one thread several are when something else wants their cores; then nothing is kept.
DISTURBED = 2.0
#: Seconds in which a single undisturbed step is waited for before anything is measured.
PATIENCE_S = 0.5

#: Milliseconds by rows.
Times = dict[int, float]


def measure(context: Context, counts: Sequence[int]) -> tuple[CostTable, bool]:
    """Time steps on a context, and leave it empty. Takes about :data:`BUDGET_S` seconds.

    Beside the costs with so many threads, in ascending order: whether they are sound. Where something else
    wants the cores, one thread's are given for all.
    """
    is_quiet = _is_quiet(context, counts[-1])
    if not is_quiet:
        counts = (1,)
        context.use_threads(1)
    prefill_ms = _fill(context)
    times = _timed_all(context, counts)
    _empty(context)
    if not (is_quiet and _is_plausible(times)):
        logger.warning("the machine is busy: what a step costs is guessed from one thread's")
        return _table({1: times[1]}, None), False
    table = _table(times, prefill_ms)
    for threads, costs in table.by_threads:
        logger.info("step costs with %d threads (rows, ms): %s", threads, costs)
    return table, True


def _is_quiet(context: Context, threads: int) -> bool:
    """Whether so many threads find as many cores, at least for a step."""
    context.use_threads(1)
    alone = min(_timed(context, _rows(context, 1)) for _ in range(2))
    context.use_threads(threads)
    until = time.perf_counter() + PATIENCE_S
    while not (is_quiet := _timed(context, _rows(context, 1)) <= DISTURBED * alone):
        if time.perf_counter() >= until:
            break
    return is_quiet


def _is_plausible(times: dict[int, Times]) -> bool:
    """Whether no number of threads is much slower than one."""
    alone = times[1]
    slowest = (ms / alone[size] for found in times.values() for size, ms in found.items() if size in alone)
    return max(slowest) <= DISTURBED


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
    """One row always, the others while there is time."""
    # Twice, since the first step after a change of threads takes longer.
    for size in (1, *SIZES):
        if size <= context.slots and (not times or time.perf_counter() < until):
            times[size] = min(times.get(size, inf), _timed(context, _rows(context, size)))


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


def _num_cells(context: Context) -> int:
    return min(PROMPT_TOKENS, context.n_ctx - 1)


def _rows(context: Context, size: int) -> list[Row]:
    """The next token of so many sequences."""
    return [Row(1, _num_cells(context), slot, True) for slot in range(size)]


def _fill(context: Context) -> float:
    """Give each slot the cells of a prompt, as what decodes has; milliseconds that a token of it takes."""
    size = _num_cells(context)
    rows = [Row(1, pos, 0, pos == size - 1) for pos in range(size)]
    _timed(context, rows)  # the second time counts: now buffers are made
    started = time.perf_counter()
    context.decode(rows)
    context.greedy(1)
    prefill_ms = (time.perf_counter() - started) * 1e3 / size
    for slot in range(1, context.slots):
        context.copy(0, slot, size)
    return prefill_ms


def _empty(context: Context) -> None:
    for slot in range(context.slots):
        context.trim(slot, 0)


def _timed(context: Context, rows: list[Row]) -> float:
    """Milliseconds to compute rows and choose their tokens, whose cells are then dropped."""
    started = time.perf_counter()
    context.decode(rows)
    context.greedy(sum(row.is_output for row in rows))
    elapsed = (time.perf_counter() - started) * 1e3
    for slot, start in {row.seq: row.pos for row in reversed(rows)}.items():
        if not context.trim(slot, start):
            context.trim(slot, 0)  # a model that can't be cut
    return elapsed
