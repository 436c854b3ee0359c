"""What steps cost: as a sibling or an earlier start found it, or else measured now, by one child for all."""

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


#: Starts of a worker that measure anew. Of each size the quickest counts: a start is a busy moment.
STARTS = 3


def known_costs(context: Context, threads: Threads, note: SharedNote) -> CostTable:
    """The costs that a sibling noted, or those kept for this model, shape and machine, or else measured now.

    Measured ones are kept, if they are sound, and made better by the next few starts.
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
    """The costs kept, and how many starts measured them."""
    found = kept.read(path)
    table = CostTable.from_json(json.dumps(found).encode())
    return (None, 0) if table is None else (table, int(found.get("starts", 0)))


def _keep(path: Path, costs: CostTable, num_starts: int) -> None:
    kept.keep(path, {"starts": num_starts, **json.loads(costs.to_json())})
