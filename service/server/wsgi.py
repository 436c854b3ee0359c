"""What gunicorn loads in each API process: ``service.server.wsgi:build()``."""

from __future__ import annotations

import gc

from flask import Flask

from service import runtime
from service.app import create_app
from service.server import share
from service.server.request_body import with_body
from service.settings import api_settings
from service.telemetry import tracing

#: This process's parts, for the signal handler of gunicorn's worker; set by :func:`build`.
current: runtime.Runtime | None = None


def build() -> Flask:
    """Build and start this process's application."""
    global current  # noqa: PLW0603 - gunicorn's signal handler has no other way to the application
    current = runtime.build(api_settings(), share.current)
    current.start()
    app = create_app(current)
    app.wsgi_app = with_body(app.wsgi_app)  # type: ignore[method-assign, assignment]
    tracing.instrument(app, current.settings)
    # All objects made so far stay. Checking them for garbage again and again would slow every request.
    gc.collect()
    gc.freeze()
    return app
