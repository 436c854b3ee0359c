"""Makes an API process's spans: Flask's and Redis's by their instrumentation, and one for each answer.

This module is imported only if traces are wanted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from opentelemetry import context
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor

from service.telemetry.request_log import PROBED, Exchange, present
from tasks.telemetry.otel import OUTCOME, REQUEST_ID, Wall, describe_end, make_provider

if TYPE_CHECKING:
    from flask import Flask, Response
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

    from service.settings import ApiSettings


def instrument(app: Flask, settings: ApiSettings) -> TracerProvider:
    """Trace ``app`` and its Redis commands; return the spans' sender, to be shut down at the end."""
    provider = make_provider(settings, "inference-api", closes_itself=False)
    probes = ",".join(f"^https?://[^/]+{path}" for path in PROBED)
    FlaskInstrumentor().instrument_app(  # type: ignore[no-untyped-call]
        app, tracer_provider=provider, excluded_urls=probes, enable_commenter=False
    )
    RedisInstrumentor().instrument(tracer_provider=provider)
    _trace_answers(app, provider.get_tracer(__name__))
    return provider


def _trace_answers(app: Flask, tracer: Tracer) -> None:
    """Add a span that ends when the last token was sent; Flask's own span ends when a stream begins."""

    @app.after_request
    def follow(response: Response) -> Response:
        exchange = present()
        if exchange.listener is not None:
            response.call_on_close(partial(_end, tracer, context.get_current(), exchange))
        return response


def _end(tracer: Tracer, within: Context, exchange: Exchange) -> None:
    wall, end = Wall.now(), exchange.end
    span = tracer.start_span("answer", within, start_time=wall.at(exchange.started))
    span.set_attributes({REQUEST_ID: exchange.id, OUTCOME: exchange.told_outcome or ""})
    if end is not None:
        describe_end(span, end)
    span.end(wall.now_ns)
