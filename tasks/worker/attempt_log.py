"""The observers of each attempt: one writes a log line, and another makes spans if traces are wanted."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from tasks.telemetry import tracing
from tasks.worker.attempt import Attempt
from tasks.worker.observers import AttemptObserver, outcome

if TYPE_CHECKING:
    from tasks.settings import BrokerSettings

logger = logging.getLogger(__name__)


class AttemptLog(AttemptObserver):
    """Logs one line for each attempt."""

    def on_over(self, attempt: Attempt) -> None:
        """Log what became of the attempt and what it cost; times in milliseconds."""
        told = {
            "id": attempt.id,
            "model": attempt.request.model,
            "attempt": attempt.number,
            "outcome": outcome(attempt),
            **_cost(attempt),
            "queue_ms": attempt.queue_ms,
            "attempt_ms": round((monotonic() - attempt.claimed_at) * 1e3, 1),
        }
        logger.info("attempt", extra={name: value for name, value in told.items() if value is not None})


def attempt_observers(settings: BrokerSettings) -> tuple[AttemptObserver, ...]:
    """Make the observers. Call this in the child: the one that makes traces starts a thread."""
    if not tracing.is_wanted(settings):
        return (AttemptLog(),)
    from tasks.worker.attempt_spans import AttemptSpans

    return AttemptLog(), AttemptSpans.start(settings)


def _cost(attempt: Attempt) -> dict[str, Any]:
    told: dict[str, Any] = {"prompt_tokens": attempt.prompt_tokens}
    if attempt.end is None:
        return told
    if attempt.end.error is not None:
        told["error"] = attempt.end.error.code.value
    if attempt.end.usage is not None:
        told["tokens"] = attempt.end.usage.completion_tokens
    if attempt.end.timings is not None:
        told |= {
            name: getattr(attempt.end.timings, name) for name in ("cache_n", "prompt_ms", "predicted_ms")
        }
    return told
