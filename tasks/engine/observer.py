"""An engine's observer, whose hooks do nothing by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.engine.sequence import Ending
    from tasks.engine.step.scheduler import Step


class Observer:
    """Hooks called on the engine's thread; they must return soon and never raise."""

    def on_step(self, step: Step, num_tokens: int, seconds: float) -> None:
        """A step was computed and delivered; it took ``seconds`` and generated ``num_tokens`` tokens."""

    def on_draft(self, guessed: int, right: int) -> None:
        """Guessed tokens were checked: ``right`` of ``guessed`` were right."""

    def on_preemption(self) -> None:
        """The KV cache was full, and the youngest sequence went back to the queue."""

    def on_end(self, ending: Ending) -> None:
        """A job ended by itself (not by a cancel)."""
