"""Measure what steps of each size cost on a context, and keep it for the next start on the same machine."""

from __future__ import annotations

import json
import logging
import platform
import statistics
import time
from pathlib import Path

from platformdirs import user_cache_path

from tasks.engine.costs import StepCosts
from tasks.engine.model import Context, Row

logger = logging.getLogger(__name__)

#: Sizes measured, as far as there are slots; those between are interpolated.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
#: Steps of each size; the median counts. Seconds after which no further size is measured.
REPEATS = 3
BUDGET_S = 1.5
PROMPT_TOKENS = 64


def measured_costs(context: Context, threads: int) -> StepCosts:
    """The costs kept for this model, shape and machine, or else measured now and kept."""
    path = _path(context, threads)
    try:
        raw = json.loads(path.read_text())
        return StepCosts(
            tuple((int(rows), float(ms)) for rows, ms in raw["decode"]), float(raw["prefill_ms"])
        )
    except (OSError, ValueError, LookupError, TypeError):
        costs = measure(context)
        _keep(path, costs)
        return costs


def measure(context: Context) -> StepCosts:
    """Time steps on an empty context, and leave it empty. Takes about :data:`BUDGET_S` seconds."""
    started = time.perf_counter()
    prompt = [
        Row(1, pos, 0, pos == PROMPT_TOKENS - 1) for pos in range(min(PROMPT_TOKENS, context.n_ctx - 1))
    ]
    _timed(context, prompt[:1])
    context.trim(0, 0)
    prefill_ms = _timed(context, prompt) / len(prompt)
    decode: list[tuple[int, float]] = []
    for size in (size for size in SIZES if size <= context.slots):
        if decode and time.perf_counter() - started > BUDGET_S:
            break
        decode.append((size, statistics.median(_timed(context, _step(size)) for _ in range(REPEATS))))
    for slot in range(context.slots):
        context.trim(slot, 0)
    logger.info("step costs (rows, ms): %s; %.2f ms a prompt token", decode, prefill_ms)
    return StepCosts(tuple(decode), prefill_ms)


def _step(size: int) -> list[Row]:
    return [Row(1, PROMPT_TOKENS, slot, True) for slot in range(size)]


def _timed(context: Context, rows: list[Row]) -> float:
    """Milliseconds to compute rows and choose their tokens; the sequences' last cells are then dropped."""
    started = time.perf_counter()
    context.decode(rows)
    context.greedy(sum(row.is_output for row in rows))
    elapsed = (time.perf_counter() - started) * 1e3
    if len(rows) <= context.slots and rows[-1].pos == PROMPT_TOKENS:
        for row in rows:
            context.trim(row.seq, PROMPT_TOKENS)
    return elapsed


def _path(context: Context, threads: int) -> Path:
    file = context.model.path.stat()
    shape = f"{context.slots}x{threads}-{context.n_ctx}-{file.st_size}-{int(file.st_mtime)}"
    return user_cache_path("inference-server") / f"step-costs-{platform.node()}-{shape}.json"


def _keep(path: Path, costs: StepCosts) -> None:
    """Best effort: without it the next start measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"decode": costs.decode, "prefill_ms": costs.prefill_ms}))
        part.replace(path)
    except OSError as error:
        logger.info("step costs not kept: %s", error)
