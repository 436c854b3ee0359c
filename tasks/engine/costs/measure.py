"""Measures what a step of each size costs on a context, with each number of threads that it may get."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from math import inf

from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.engine.llama.context import Context, Row

logger = logging.getLogger(__name__)

#: Rows of the steps to measure, the most informative first, as far as slots and time allow. Other sizes are
#: interpolated.
SIZES = (1, 2, 4, 8, 3, 16, 7, 6, 5, 12, 9, 32, 24)
#: Rounds over all sizes. Each size's quickest time counts, so a disturbance in one round spoils no size.
ROUNDS = 3
#: Seconds after which no further size is measured.
BUDGET_S = 1.5
#: Cells of each sequence while measuring, since reading cells takes part of a step's time.
PROMPT_TOKENS = 128
#: If several threads take more than this many times as long as one, another program is using their cores.
#: Then no costs are kept.
DISTURBED = 2.0
#: Seconds to wait for one undisturbed step before measuring.
PATIENCE_S = 0.5

#: Milliseconds of a step by its number of rows.
Times = dict[int, float]


def measure(context: Context, counts: Sequence[int]) -> tuple[CostTable, bool]:
    """Measure step costs on a context, and leave it empty.

    This takes about :data:`BUDGET_S` seconds. ``counts`` are numbers of threads in ascending order.

    Returns:
        The costs with each number of threads, and whether they are sound. If another program uses the cores,
        they are not sound, and the costs with one thread stand for all numbers of threads.
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
    """Whether each of ``threads`` threads gets a core of its own, at least for one step."""
    context.use_threads(1)
    alone = min(_timed(context, _rows(context, 1)) for _ in range(2))
    context.use_threads(threads)
    until = time.perf_counter() + PATIENCE_S
    while not (is_quiet := _timed(context, _rows(context, 1)) <= DISTURBED * alone):
        if time.perf_counter() >= until:
            break
    return is_quiet


def _is_plausible(times: dict[int, Times]) -> bool:
    """Whether no number of threads is much slower than one thread."""
    alone = times[1]
    slowest = (ms / alone[size] for found in times.values() for size, ms in found.items() if size in alone)
    return max(slowest) <= DISTURBED


def _timed_all(context: Context, counts: Sequence[int]) -> dict[int, Times]:
    """The quickest times of a few rounds; leaves the context with the last number of threads."""
    times: dict[int, Times] = {threads: {} for threads in counts}
    until = time.perf_counter() + BUDGET_S
    for _ in range(ROUNDS):
        for place, threads in enumerate(counts):
            now = time.perf_counter()
            context.use_threads(threads)
            _time_sizes(context, times[threads], now + (until - now) / (len(counts) - place))
    return times


def _time_sizes(context: Context, times: Times, until: float) -> None:
    """Time one row always, and the other sizes while there is time."""
    # One row comes twice, since the first step after a change of threads takes longer.
    for size in (1, *SIZES):
        if size <= context.slots and (not times or time.perf_counter() < until):
            times[size] = min(times.get(size, inf), _timed(context, _rows(context, size)))


def _table(times: dict[int, Times], prefill_ms: float | None) -> CostTable:
    """The measured costs as a table.

    Prefill is measured with all threads only. It is assumed to slow down with fewer threads as much as the
    largest step does.
    """
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
    """Rows with the next token of ``size`` sequences."""
    return [Row(1, _num_cells(context), slot, True) for slot in range(size)]


def _fill(context: Context) -> float:
    """Give each slot a prompt's cells, as decoding sequences have; returns milliseconds per prompt token."""
    size = _num_cells(context)
    _prefill(context, size)  # this first time makes buffers; only the second time counts
    context.trim(0, 0)
    started = time.perf_counter()
    _prefill(context, size)
    prefill_ms = (time.perf_counter() - started) * 1e3 / size
    for slot in range(1, context.slots):
        context.copy(0, slot, size)
    return prefill_ms


def _prefill(context: Context, size: int) -> None:
    """Compute a prompt of ``size`` tokens, in as few batches as the context allows, and choose a token."""
    rows = [Row(1, pos, 0, pos == size - 1) for pos in range(size)]
    for start in range(0, size, context.n_batch):
        context.decode(rows[start : start + context.n_batch])
    context.greedy(1)


def _empty(context: Context) -> None:
    for slot in range(context.slots):
        context.trim(slot, 0)


def _timed(context: Context, rows: list[Row]) -> float:
    """Milliseconds to compute rows and choose their tokens; afterwards drops the rows' cells."""
    started = time.perf_counter()
    context.decode(rows)
    context.greedy(sum(row.is_output for row in rows))
    elapsed = (time.perf_counter() - started) * 1e3
    for slot, start in {row.seq: row.pos for row in reversed(rows)}.items():
        if not context.trim(slot, start):
            context.trim(slot, 0)  # the model can only drop all cells
    return elapsed
