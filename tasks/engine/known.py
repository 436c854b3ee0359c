"""What steps cost: as a sibling or an earlier start found it, or else measured now, by one child for all."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from platformdirs import user_cache_path

from tasks.engine.cores import Threads
from tasks.engine.cost_table import CostTable
from tasks.engine.measure import measure
from tasks.engine.model import Context
from tasks.shared import SharedNote

logger = logging.getLogger(__name__)


def known_costs(context: Context, threads: Threads, note: SharedNote) -> CostTable:
    """The costs that a sibling noted, or those kept for this model, shape and machine, or else measured now.

    Afterwards they are in the note. Measured ones are also kept, if they are sound.
    """
    counts = tuple(sorted({1, threads.least, threads.most}))
    path = _path(context, counts)
    found = _find(note, path)
    if found is None:
        with _turn(context.model.path):
            found = _find(note, path) or _measure(context, counts, path)
    note.write(found.to_json())
    return found


def _find(note: SharedNote, path: Path) -> CostTable | None:
    return CostTable.from_json(note.read()) or CostTable.from_json(_read(path))


def _measure(context: Context, counts: tuple[int, ...], path: Path) -> CostTable:
    costs, is_sound = measure(context, counts)
    if is_sound:
        _keep(path, costs.to_json())
    return costs


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait until no other process measures steps of this model: they would take each other's cores.

    The lock is the system's, so it is free when its holder dies. Where there is none, nobody waits.
    """
    with path.open("rb") as file:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _path(context: Context, counts: tuple[int, ...]) -> Path:
    file = context.model.path.stat()
    threads = "-".join(map(str, counts))
    shape = f"{context.slots}x{threads}-{context.n_ctx}-{file.st_size}-{int(file.st_mtime)}"
    return user_cache_path("inference-server") / f"step-costs-4-{platform.node()}-{shape}.json"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _keep(path: Path, text: bytes) -> None:
    """Best effort: without it the next start measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        logger.info("step costs not kept: %s", error)
