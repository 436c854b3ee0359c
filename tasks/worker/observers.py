"""Observers of a child's attempts at requests; their hooks do nothing by default."""

from __future__ import annotations

from tasks.worker.attempt import Attempt


class AttemptObserver:
    """Hooks called on the thread that runs the request; they must return soon and never raise."""

    def on_over(self, attempt: Attempt) -> None:
        """An attempt is over, whatever became of the request."""

    def on_close(self) -> None:
        """The child ends."""


def outcome(attempt: Attempt) -> str:
    """``succeeded``, ``failed``, ``handed back``, or ``dropped`` (ended, or in another attempt)."""
    if attempt.end is not None:
        return attempt.end.state.value
    return "handed back" if attempt.is_handed_back else "dropped"
