"""The spans of a worker child; imported only where traces are wanted.

A message carries its request's trace context in its headers, so every attempt's spans are in the trace of
the HTTP request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.trace import NonRecordingSpan
from opentelemetry.util.types import Attributes

from tasks.telemetry.otel import ATTEMPT, OUTCOME, REQUEST_ID, Wall, describe_end, make_provider
from tasks.worker.observers import AttemptObserver, outcome

if TYPE_CHECKING:
    from tasks.settings import BrokerSettings
    from tasks.worker.attempt import Attempt


class AttemptSpans(AttemptObserver):
    """Adds the parts of an attempt to the span that Celery's instrumentation makes of its task."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(__name__)

    @classmethod
    def start(cls, settings: BrokerSettings) -> Self:
        """Begin to trace this process's tasks and their commands to Redis."""
        provider = make_provider(settings, "inference-worker")
        CeleryInstrumentor().instrument(tracer_provider=provider)  # type: ignore[no-untyped-call]
        RedisInstrumentor().instrument(tracer_provider=provider)
        return cls(provider)

    def on_over(self, attempt: Attempt) -> None:
        """Make an attempt's spans, now that all times are known."""
        task = trace.get_current_span()
        if not isinstance(task, Span) or not task.is_recording():
            return
        wall = Wall.now()
        claimed = wall.at(attempt.claimed_at)
        if attempt.number == 1:
            self._span("queue", _before(task), claimed - int(attempt.queue_ms * 1e6), claimed)
        within = trace.set_span_in_context(task)
        self._span("claim", within, task.start_time or claimed, claimed)
        self._compute(attempt, wall, within)
        _describe(task, attempt)

    def on_close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def _compute(self, attempt: Attempt, wall: Wall, within: Context) -> None:
        ending = attempt.ending
        if ending is None or ending.first_ms is None:
            return
        first = attempt.submitted_at + ending.first_ms / 1e3
        last = first + sum(ending.gaps_ms) / 1e3
        reused = {
            "inference.prompt_tokens.computed": ending.prompt_n,
            "inference.prompt_tokens.reused": ending.cache_n,
        }
        self._span("prefill", within, wall.at(first - ending.prompt_ms / 1e3), wall.at(first), reused)
        tokens = {"gen_ai.usage.output_tokens": ending.predicted_n}
        self._span("decode", within, wall.at(first), wall.at(last), tokens)

    def _span(self, name: str, within: Context, start: int, end: int, attributes: Attributes = None) -> None:
        span = self._tracer.start_span(name, within, start_time=start, attributes=attributes)
        span.end(end)


def _before(task: Span) -> Context:
    """The context that a task's span is in: the sender's."""
    return trace.set_span_in_context(NonRecordingSpan(task.parent)) if task.parent else Context()


def _describe(task: Span, attempt: Attempt) -> None:
    task.set_attributes(
        {
            REQUEST_ID: attempt.id,
            "gen_ai.request.model": attempt.request.model,
            ATTEMPT: attempt.number,
            OUTCOME: outcome(attempt),
        }
    )
    if attempt.end is not None:
        describe_end(task, attempt.end)
