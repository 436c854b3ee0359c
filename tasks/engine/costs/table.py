"""What steps cost with each number of threads. Pure."""

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
        """The costs with so many threads, interpolated between measured numbers; outside them the nearest."""
        return _at(self, threads)

    def quickest(self, other: CostTable) -> CostTable:
        """The lesser costs of this table and another of the same numbers of threads."""
        others = dict(other.by_threads)
        return CostTable(
            tuple((threads, costs.quickest(others.get(threads, costs))) for threads, costs in self.by_threads)
        )

    def to_json(self) -> bytes:
        """As :meth:`from_json` reads it."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> CostTable | None:
        """The table; ``None`` when the text is anything else."""
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
    """What ``high`` threads count: time is a fixed part and a part that the threads share."""
    return (1 / low - 1 / threads) / (1 / low - 1 / high)


def _mixed(slow: StepCosts, quick: StepCosts, weight: float) -> StepCosts:
    def mix(read: Callable[[StepCosts], float]) -> float:
        return read(slow) * (1 - weight) + read(quick) * weight

    sizes = sorted({rows for costs in (slow, quick) for rows, _ in costs.decode})
    decode = tuple((rows, mix(lambda costs, rows=rows: costs.decode_ms(rows))) for rows in sizes)  # type: ignore[misc]
    return StepCosts(decode, mix(lambda costs: costs.prefill_ms))
