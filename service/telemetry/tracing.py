"""Traces HTTP exchanges if an OTLP endpoint is set; otherwise the tracing libraries aren't imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.telemetry.tracing import is_wanted

if TYPE_CHECKING:
    from flask import Flask

    from service.settings import ApiSettings


#: Key of the spans' sender among the application's extensions.
EXTENSION = "tracing"


def instrument(app: Flask, settings: ApiSettings) -> None:
    """Trace ``app``; call it in the process that serves, since it starts a thread."""
    if is_wanted(settings):
        from service.telemetry import spans

        app.extensions[EXTENSION] = spans.instrument(app, settings)


def message_headers(settings: ApiSettings) -> Callable[[dict[str, str]], None]:
    """A function that adds the current trace's context to a message's headers, if traces are wanted."""
    if not is_wanted(settings):
        return lambda _headers: None
    from opentelemetry import propagate

    return propagate.inject


def close(app: Flask | None) -> None:
    """Send the remaining spans, within a bounded time; ``app`` is ``None`` if it was never built."""
    provider = None if app is None else app.extensions.get(EXTENSION)
    if provider is not None:
        provider.shutdown()
