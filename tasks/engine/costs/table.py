"""What steps cost with each number of threads; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from tasks.engine.costs.shape import StepCosts


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured step costs by the number of threads, fewest first."""

    by_threads: tuple[tuple[int, StepCosts], ...]

    def at(self, threads: int) -> StepCosts:
        """The costs with ``threads`` threads: interpolated, or the nearest outside the measured range."""
        return _at(self, threads)

    def quickest(self, other: CostTable) -> CostTable:
        """The smaller costs of this table and another one with the same numbers of threads."""
        others = dict(other.by_threads)
        return CostTable(
            tuple((threads, costs.quickest(others.get(threads, costs))) for threads, costs in self.by_threads)
        )

    def to_json(self) -> bytes:
        """The table as JSON, for :meth:`from_json`."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> CostTable | None:
        """The table; ``None`` if the text isn't one."""
        return _parsed(text)


@lru_cache(maxsize=1)
def _parsed(text: bytes) -> CostTable | None:
    try:
        found = tuple((int(threads), _costs(raw)) for threads, raw in json.loads(text)["by_threads"])
    except (ValueError, LookupError, TypeError):
        return None
    return CostTable(found) if found else None


def _costs(raw: Mapping[str, Any]) -> StepCosts:
    decode = tuple((int(rows), float(ms)) for rows, ms in raw["decode"])
    return StepCosts(decode, float(raw["prefill_ms"]))


@lru_cache(maxsize=256)
def _at(table: CostTable, threads: int) -> StepCosts:
    fewer = [entry for entry in table.by_threads if entry[0] <= threads]
    more = [entry for entry in table.by_threads if entry[0] >= threads]
    if not fewer or not more:
        return (fewer[-1:] + more[:1])[0][1]
    (low, slow), (high, quick) = fewer[-1], more[0]
    return slow if low == high else _mixed(slow, quick, _weight(low, high, threads))


def _weight(low: int, high: int, threads: int) -> float:
    """The weight of the costs with ``high`` threads.

    A step's time is taken to be a fixed part, and a part that the threads divide among themselves.
    """
    return (1 / low - 1 / threads) / (1 / low - 1 / high)


def _mixed(slow: StepCosts, quick: StepCosts, weight: float) -> StepCosts:
    def mix(read: Callable[[StepCosts], float]) -> float:
        return read(slow) * (1 - weight) + read(quick) * weight

    sizes = sorted({rows for costs in (slow, quick) for rows, _ in costs.decode})
    decode = tuple((rows, mix(lambda costs, rows=rows: costs.decode_ms(rows))) for rows in sizes)  # type: ignore[misc]
    return StepCosts(decode, mix(lambda costs: costs.prefill_ms))
