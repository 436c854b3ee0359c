"""What can be watched of an engine: an observer's hooks do nothing by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.engine.sequence import Ending
    from tasks.engine.step.scheduler import Step


class Observer:
    """Hooks called on the engine's thread; they must return soon and never raise."""

    def on_step(self, step: Step, num_tokens: int, seconds: float) -> None:
        """A step was computed and delivered; it generated so many tokens."""

    def on_draft(self, guessed: int, right: int) -> None:
        """So many guessed tokens were checked, and so many of them were right."""

    def on_preemption(self) -> None:
        """The cache was full, and the youngest sequence was put back to wait."""

    def on_end(self, ending: Ending) -> None:
        """A job ended by itself (not by a cancel)."""
