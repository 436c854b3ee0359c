"""Counts what an engine does, in memory that its worker's parent shares."""

from __future__ import annotations

from tasks.engine.observer import Observer
from tasks.engine.step.scheduler import Step
from tasks.telemetry.metric_names import WORKER_LAYOUT
from tasks.telemetry.tally import Tally

#: What is counted, see :class:`WorkCounter`.
WORK = (
    "steps",
    "rows",
    "padding",
    "prefilled",
    "generated",
    "guessed",
    "right",
    "preemptions",
)


class WorkCounter(Observer):
    """Counts an engine's work.

    It counts ``steps``, decoded ``rows`` and added ``padding`` rows, ``prefilled`` prompt tokens,
    ``generated`` tokens, ``guessed`` tokens and ``right`` guesses, and ``preemptions``. It also measures how
    many sequences a step computes, and how long a step that decodes takes.

    Args:
        tally: what to add to, which may hold earlier counts; default: a new one.
    """

    def __init__(self, tally: Tally | None = None) -> None:
        self._tally = tally or Tally(WORKER_LAYOUT)

    @property
    def counts(self) -> dict[str, int]:
        """The counts so far."""
        return self._tally.counts(WORK)

    def on_step(self, step: Step, num_tokens: int, seconds: float) -> None:
        """Count a step."""
        add, num_decoded = self._tally.add, len(step.decode)
        add("steps")
        add("generated", num_tokens)
        if step.decode:
            add("rows", num_decoded)
            add("padding", step.padding)
            self._tally.observe("step", seconds)
        if step.prefill:
            add("prefilled", step.num_prefilled)
        self._tally.observe("batch", num_decoded + len(step.prefill))

    def on_draft(self, guessed: int, right: int) -> None:
        """Count guesses."""
        self._tally.add("guessed", guessed)
        self._tally.add("right", right)

    def on_preemption(self) -> None:
        """Count a preemption."""
        self._tally.add("preemptions")
