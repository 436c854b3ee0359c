"""What gunicorn loads in each API process: ``service.server.wsgi:build()``."""

from __future__ import annotations

import gc

from flask import Flask

from service import runtime
from service.app import create_app
from service.settings import api_settings
from service.telemetry import tracing

#: The process's parts, for the worker's signal handler; set by :func:`build`.
current: runtime.Runtime | None = None


def build() -> Flask:
    """Build and start this process's application."""
    global current  # noqa: PLW0603 - gunicorn's signal handler has no other way to the application
    current = runtime.build(api_settings())
    current.start()
    app = create_app(current)
    tracing.instrument(app, current.settings)
    # What is there by now stays: looking through it for garbage again and again would cost every request.
    gc.collect()
    gc.freeze()
    return app
