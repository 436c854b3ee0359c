"""Makes the Flask application from the blueprints and the error handlers."""

from __future__ import annotations

from flask import Flask

from service.errors import ApiError
from service.intake import api_keys, header_sizes, hosts, origins
from service.routes import error_pages, health, metrics, openai, openapi, page, requests, status
from service.runtime import Runtime
from service.telemetry import request_log


def create_app(runtime: Runtime) -> Flask:
    """Make the application. The caller starts ``runtime``."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # merging would answer with a redirect in HTML
    app.json.sort_keys = False  # type: ignore[attr-defined]
    for routes in (
        openai.blueprint(runtime),
        requests.blueprint(runtime),
        health.blueprint(runtime),
        metrics.blueprint(runtime),
        openapi.blueprint(),
        status.blueprint(runtime),
        page.blueprint(),
    ):
        app.register_blueprint(routes)
    request_log.register(app)
    header_sizes.register(app)
    hosts.register(app, runtime.settings.hosts)
    origins.register(app, runtime.settings.origins)
    api_keys.register(app, runtime.settings.keys)

    def on_refused(error: ApiError) -> None:
        runtime.metrics.refused(error)
        runtime.refusals.add(error.code)

    error_pages.register(app, on_refused)
    return app
