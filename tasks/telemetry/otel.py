"""Makes spans and sends them, in every process; imported only where traces are wanted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceState
from opentelemetry.util.types import Attributes

if TYPE_CHECKING:
    from tasks.contract.messages import End
    from tasks.settings import BrokerSettings

#: Environment variables that the exporter reads; it also reads related ones (headers, certificates, …).
ENDPOINT, TIMEOUT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TIMEOUT"
#: Seconds for sending a batch, retries included, unless the environment sets :data:`TIMEOUT`.
SEND_S = 3
#: Seconds that a process waits at its end for a collector that doesn't answer.
GOODBYE_S = 2.0
REQUEST_ID, OUTCOME, ATTEMPT = "inference.request.id", "inference.outcome", "inference.attempt"


def make_provider(settings: BrokerSettings, service: str, *, closes_itself: bool = True) -> TracerProvider:
    """Make the provider that sends this process's spans, from a separate thread.

    ``service`` names the process unless ``OTEL_SERVICE_NAME`` does. If the provider ``closes_itself``, it
    sends the remaining spans when the interpreter ends.
    """
    os.environ[ENDPOINT] = settings.otlp_endpoint or ""
    os.environ.setdefault(TIMEOUT, str(SEND_S))
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    resource = Resource.create({"service.name": name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=closes_itself)
    provider.sampler = _RequestsOnly(provider.sampler)
    provider.add_span_processor(_Batches(OTLPSpanExporter()))
    return provider


class _Batches(BatchSpanProcessor):
    """Does not wait long for an absent collector when the process ends."""

    def __init__(self, exporter: SpanExporter) -> None:
        super().__init__(exporter)
        self._give_up = exporter.shutdown

    def shutdown(self) -> None:
        """Send the remaining spans, for a bounded time."""
        timer = threading.Timer(GOODBYE_S, self._give_up)
        timer.daemon = True
        timer.start()
        super().shutdown()  # type: ignore[no-untyped-call]
        timer.cancel()


class _RequestsOnly(Sampler):
    """Leaves out commands to Redis that belong to no request: heartbeats, sweeps, each step's delivery."""

    def __init__(self, chosen: Sampler) -> None:
        self._chosen = chosen

    def should_sample(  # noqa: PLR0913, PLR0917 - the interface is OpenTelemetry's
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Drop such commands; for all other spans, do what the environment's sampler says."""
        if kind is SpanKind.CLIENT and not trace.get_current_span(parent_context).get_span_context().is_valid:
            return SamplingResult(Decision.DROP)
        return self._chosen.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        """Name the sampler."""
        return f"RequestsOnly({self._chosen.get_description()})"


@dataclass(frozen=True, slots=True)
class Wall:
    """Converts this process's monotonic clock to nanoseconds since the epoch, from one moment's readings."""

    now_ns: int
    monotonic_s: float

    @classmethod
    def now(cls) -> Self:
        """Read both clocks now."""
        return cls(time.time_ns(), monotonic())

    def at(self, seconds: float) -> int:
        """The time at ``seconds`` of the monotonic clock."""
        return self.now_ns - int((self.monotonic_s - seconds) * 1e9)


def describe_end(span: trace.Span, end: End) -> None:
    """Add a request's end and its tokens to its span, but none of its texts."""
    if end.usage is not None:
        span.set_attribute("gen_ai.usage.input_tokens", end.usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", end.usage.completion_tokens)
    if end.finish_reason is not None:
        span.set_attribute("gen_ai.response.finish_reasons", [str(end.finish_reason)])
    if end.error is not None:
        span.set_attribute("error.type", end.error.code.value)
        span.set_status(Status(StatusCode.ERROR))
