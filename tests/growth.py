"""How a function's cost grows with its input: doubling the input may about double the cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: By how much the input grows, and by how much the cost may grow; a quadratic function's grows by 256.
FACTOR, ALLOWED = 16, 64
#: Below this many seconds the clock and the interpreter decide, not the input.
FLOOR_S = 0.0005


def assert_linear(function: Callable[[T], object], make: Callable[[int], T], size: int) -> None:
    """Fail if ``function`` costs out of proportion more for ``make(16 * size)`` than for ``make(size)``.

    The input doubles four times, and the first steep step ends the test, so that no steep function runs long.
    """
    base = max(FLOOR_S, _cost(function, make(size)))
    for step in (2, 4, 8, FACTOR):
        cost = _cost(function, make(step * size))
        allowed = base * step * ALLOWED / FACTOR
        assert cost < allowed, f"{step} times the input costs {cost / base:.0f} times as much"


def _cost(function: Callable[[T], object], value: T) -> float:
    """Processor time of this thread in seconds, the least of three calls; one call if it is long."""
    costs: list[float] = []
    while len(costs) < 3 and sum(costs) < 1:
        start = time.thread_time()
        function(value)
        costs.append(time.thread_time() - start)
    return min(costs)
