"""Chooses the number of threads of a step, and says what the step costs with them."""

from __future__ import annotations

from tasks.engine.costs.governor import Governor
from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.engine.costs.threads import Threads
from tasks.engine.llama.context import Context

#: A machine that is busy with other things computes so many times slower, but not slower still.
_MARGIN = 20


class Pace:
    """Sets a context's threads before each step, and learns from how long the step took."""

    def __init__(
        self, context: Context, threads: Threads, table: CostTable | None, first_s: float = 0.0
    ) -> None:
        """``table`` has the measured costs; with ``None`` nothing is learnt.

        ``first_s``: seconds that the first few rows took.
        """
        self._first_s = first_s
        self._context, self._threads, self._table = context, threads, table
        self._governor, self._now = Governor(), threads.least
        self._alone = None if table is None else table.at(1)

    def begin(self, now: float) -> StepCosts | None:
        """Choose the threads for a step that begins at ``now``, in seconds; returns its costs with them."""
        self._now = self._governor.choose(self._threads.work(), now)
        self._context.use_threads(self._now)
        return None if self._table is None else self._table.at(self._now)

    def end(self, num_rows: int, num_prefilled: int, seconds: float, now: float) -> None:
        """Note that a step of ``num_rows`` rows and ``num_prefilled`` prompt tokens took ``seconds``."""
        if self._alone is None:
            return
        decode_ms = self._alone.decode_ms(num_rows) if num_rows else 0.0
        alone_ms = decode_ms + num_prefilled * self._alone.prefill_ms
        self._governor.observe(self._now, seconds * 1e3, alone_ms, now)

    def longest_s(self, num_rows: int, num_prefilled: int) -> float:
        """Seconds that a step takes at most, unless it hangs: many times what it takes by rights."""
        if self._alone is None:
            return (num_rows + num_prefilled) * self._first_s
        decode_ms = self._alone.decode_ms(num_rows) if num_rows else 0.0
        return (decode_ms + num_prefilled * self._alone.prefill_ms) * _MARGIN / 1e3

    def rest(self) -> None:
        """Let other children have the cores while there is nothing to compute."""
        self._threads.rest()
