"""What can be watched of an engine: an observer's hooks do nothing by default."""

from __future__ import annotations

from tasks.engine.scheduler import Step
from tasks.engine.sequence import Ending

#: What is counted, see :class:`WorkCounter`.
WORK = ("steps", "batches", "rows", "padding", "prefilled", "guessed", "right", "preemptions")


class Observer:
    """Hooks called on the engine's thread; they must return soon and never raise."""

    def on_step(self, step: Step, seconds: float) -> None:
        """A step was computed and delivered."""

    def on_draft(self, guessed: int, right: int) -> None:
        """So many guessed tokens were checked, and so many of them were right."""

    def on_preemption(self) -> None:
        """The cache was full, and the youngest sequence was put back to wait."""

    def on_end(self, ending: Ending) -> None:
        """A job ended by itself (not by a cancel)."""


class WorkCounter(Observer):
    """Counts an engine's work since its start.

    ``steps`` and the ``batches`` they decoded in (more than steps where splitting pays), ``rows`` decoded and
    ``padding`` rows added, ``prefilled`` prompt tokens, tokens ``guessed`` and guessed
    ``right``, ``preemptions``.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(WORK, 0)

    def on_step(self, step: Step, seconds: float) -> None:
        """Add a step up."""
        counts = self.counts
        counts["steps"] += 1
        counts["batches"] += len(step.decode)
        counts["rows"] += step.num_decoded
        counts["padding"] += sum(batch.padding for batch in step.decode)
        counts["prefilled"] += step.num_prefilled

    def on_draft(self, guessed: int, right: int) -> None:
        """Add guesses up."""
        self.counts["guessed"] += guessed
        self.counts["right"] += right

    def on_preemption(self) -> None:
        """Add a preemption."""
        self.counts["preemptions"] += 1
