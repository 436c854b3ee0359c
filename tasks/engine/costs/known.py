"""Finds what steps cost: from a sibling or an earlier start, else one child measures it for all."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from tasks.engine import kept
from tasks.engine.costs.measure import measure
from tasks.engine.costs.shared_note import SharedNote
from tasks.engine.costs.table import CostTable
from tasks.engine.costs.threads import Threads
from tasks.engine.llama.context import Context

logger = logging.getLogger(__name__)


#: This many starts of a worker measure. For each size the quickest time counts: a start is a busy moment.
STARTS = 3


def known_costs(context: Context, threads: Threads, note: SharedNote) -> CostTable:
    """The step costs: noted by a sibling, else kept for this model, shape and machine, else measured now.

    Measured costs are kept if they are sound, and the next few starts improve them.
    """
    found = CostTable.from_json(note.read())
    if found is None:
        counts = tuple(sorted({1, threads.least, threads.most}))
        with kept.turn(context.model.path):
            found = CostTable.from_json(note.read()) or _kept_or_measured(context, counts)
            note.write(found.to_json())
    return found


def _kept_or_measured(context: Context, counts: tuple[int, ...]) -> CostTable:
    path = _path(context, counts)
    earlier, num_starts = _read(path)
    if earlier is not None and num_starts >= STARTS:
        return earlier
    measured, is_sound = measure(context, counts)
    if not is_sound:
        return earlier or measured
    best = measured if earlier is None else earlier.quickest(measured)
    _keep(path, best, num_starts + 1)
    return best


def _path(context: Context, counts: tuple[int, ...]) -> Path:
    model, shape = context.model, (context.slots, context.n_ctx, counts)
    return kept.kept_path("step-costs", kept.model_identity(model.path), shape, str(model.kernels))


def _read(path: Path) -> tuple[CostTable | None, int]:
    """The kept costs, and how many starts measured them."""
    found = kept.read(path)
    table = CostTable.from_json(json.dumps(found).encode())
    return (None, 0) if table is None else (table, int(found.get("starts", 0)))


def _keep(path: Path, costs: CostTable, num_starts: int) -> None:
    kept.keep(path, {"starts": num_starts, **json.loads(costs.to_json())})
