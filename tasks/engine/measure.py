"""Measure what steps of each size cost on a context, and keep it for the next start on the same machine."""

from __future__ import annotations

import json
import logging
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from platformdirs import user_cache_path

from tasks.engine.costs import StepCosts
from tasks.engine.model import Context, Row

logger = logging.getLogger(__name__)

#: Sizes measured with all threads and with one, as far as there are slots; those between are interpolated.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
SIZES_ALONE = (1, 4, 16)
#: Steps of each size; the quickest counts. Seconds after which no further size is measured.
REPEATS = 3
BUDGET_S = 1.5
PROMPT_TOKENS = 64
#: How much slower than one thread several are when something else wants their cores; then nothing is kept.
DISTURBED = 3.0


def measured_costs(context: Context, threads: int) -> StepCosts:
    """The costs kept for this model, shape and machine, or else measured now, and kept if they are sound."""
    path = _path(context, threads)
    try:
        return _read(path)
    except (OSError, ValueError, LookupError, TypeError):
        costs, is_sound = measure(context, threads)
        if is_sound:
            _keep(path, costs)
        return costs


def measure(context: Context, threads: int) -> tuple[StepCosts, bool]:
    """Time steps on an empty context, and leave it empty. Takes about :data:`BUDGET_S` seconds.

    Beside the costs: whether they are sound. Where something else wants the cores, one thread's are given
    for all threads'.
    """
    deadline = time.perf_counter() + BUDGET_S
    context.use_threads(1)
    alone = tuple(_sizes(context, SIZES_ALONE if threads > 1 else (), deadline))
    context.use_threads(threads)
    _quickest(context, 1)
    if alone and _quickest(context, 1) > DISTURBED * alone[0][1]:
        logger.warning("the machine is busy: what a step costs is guessed from one thread's")
        return StepCosts(alone, alone[-1][1] / alone[-1][0], alone), False
    prefill_ms = _timed(context, _prompt(context)) / PROMPT_TOKENS
    decode = tuple(_sizes(context, SIZES, deadline))
    for slot in range(context.slots):
        context.trim(slot, 0)
    logger.info("step costs (rows, ms): %s; %.2f ms a prompt token", decode, prefill_ms)
    return StepCosts(decode, prefill_ms, alone), True


def _sizes(context: Context, sizes: Iterable[int], deadline: float) -> Iterable[tuple[int, float]]:
    """The first size always, the others while there is time."""
    for size in sizes:
        if size <= context.slots and (size == 1 or time.perf_counter() < deadline):
            yield size, _quickest(context, size)


def _quickest(context: Context, size: int) -> float:
    return min(
        _timed(context, [Row(1, PROMPT_TOKENS, slot, True) for slot in range(size)]) for _ in range(REPEATS)
    )


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


def _path(context: Context, threads: int) -> Path:
    file = context.model.path.stat()
    shape = f"{context.slots}x{threads}-{context.n_ctx}-{file.st_size}-{int(file.st_mtime)}"
    return user_cache_path("inference-server") / f"step-costs-2-{platform.node()}-{shape}.json"


def _read(path: Path) -> StepCosts:
    raw = json.loads(path.read_text())
    decode, alone = (tuple((int(rows), float(ms)) for rows, ms in raw[name]) for name in ("decode", "alone"))
    return StepCosts(decode, float(raw["prefill_ms"]), alone)


def _keep(path: Path, costs: StepCosts) -> None:
    """Best effort: without it the next start measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(costs)))
        part.replace(path)
    except OSError as error:
        logger.info("step costs not kept: %s", error)
