"""What can be watched of a child's attempts at requests: an observer's hooks do nothing by default."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from tasks.telemetry import tracing
from tasks.worker.attempt import Run

if TYPE_CHECKING:
    from tasks.settings import BrokerSettings

logger = logging.getLogger(__name__)


class AttemptObserver:
    """Hooks called on the thread that runs the request; they must return soon and never raise."""

    def on_over(self, run: Run) -> None:
        """An attempt is over, whatever became of the request."""

    def on_close(self) -> None:
        """The child ends."""


class AttemptLog(AttemptObserver):
    """One line for each attempt."""

    def on_over(self, run: Run) -> None:
        """Say what became of it and what it cost; times in milliseconds."""
        told = {
            "id": run.id,
            "model": run.claim.request.model,
            "attempt": run.claim.attempt,
            "outcome": outcome(run),
            **_cost(run),
            "queue_ms": run.claim.queue_ms,
            "attempt_ms": round((monotonic() - run.claimed_at) * 1e3, 1),
        }
        logger.info("attempt", extra={name: value for name, value in told.items() if value is not None})


def attempt_observers(settings: BrokerSettings) -> tuple[AttemptObserver, ...]:
    """Those of a worker child. To be made in the child: the one that makes traces starts a thread."""
    if not tracing.is_wanted(settings):
        return (AttemptLog(),)
    from tasks.worker.attempt_spans import AttemptSpans

    return AttemptLog(), AttemptSpans.start(settings)


def outcome(run: Run) -> str:
    """``succeeded``, ``failed``, ``handed back``, or ``dropped``: it is over, or another attempt has it."""
    if run.end is not None:
        return run.end.state.value
    return "handed back" if run.is_handed_back else "dropped"


def _cost(run: Run) -> dict[str, Any]:
    told: dict[str, Any] = {"prompt_tokens": run.prompt_tokens}
    if run.end is None:
        return told
    if run.end.error is not None:
        told["error"] = run.end.error.code.value
    if run.end.usage is not None:
        told["tokens"] = run.end.usage.completion_tokens
    if run.end.timings is not None:
        told |= {name: getattr(run.end.timings, name) for name in ("cache_n", "prompt_ms", "predicted_ms")}
    return told
