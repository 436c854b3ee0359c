"""Traces of HTTP requests, if an OTLP endpoint is set; without one none of it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.telemetry.tracing import is_wanted

if TYPE_CHECKING:
    from flask import Flask

    from service.settings import ApiSettings


#: Among the application's extensions: what sends its spans.
EXTENSION = "tracing"


def instrument(app: Flask, settings: ApiSettings) -> None:
    """Trace ``app``. To be called in the process that serves, since it starts a thread."""
    if is_wanted(settings):
        from service.telemetry import spans

        app.extensions[EXTENSION] = spans.instrument(app, settings)


def message_headers(settings: ApiSettings) -> Callable[[dict[str, str]], None]:
    """What adds the present trace's context to a message's headers; nothing where there are no traces."""
    if not is_wanted(settings):
        return lambda _headers: None
    from opentelemetry import propagate

    return propagate.inject


def close(app: Flask | None) -> None:
    """Send the spans that are left, for a bounded time; of an application that may never have been built."""
    provider = None if app is None else app.extensions.get(EXTENSION)
    if provider is not None:
        provider.shutdown()
