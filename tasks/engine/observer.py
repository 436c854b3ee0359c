"""What can be watched of an engine. Metrics subclass this; every hook does nothing by default."""

from __future__ import annotations

from tasks.engine.scheduler import Step
from tasks.engine.sequence import Ending


class Observer:
    """Hooks called on the engine's thread; they must return soon and never raise."""

    def on_step(self, step: Step, seconds: float) -> None:
        """A step was computed and delivered."""

    def on_preemption(self) -> None:
        """The cache was full, and the youngest sequence was put back to wait."""

    def on_end(self, ending: Ending) -> None:
        """A job ended by itself (not by a cancel)."""
