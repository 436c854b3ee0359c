"""``/metrics``, for Prometheus."""

from __future__ import annotations

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.runtime import Runtime


def blueprint(runtime: Runtime) -> Blueprint:
    """The endpoint."""
    routes = Blueprint("metrics", __name__)

    @routes.get("/metrics")
    def metrics() -> Response:
        return Response(runtime.metrics.render(), content_type=CONTENT_TYPE_LATEST)

    return routes
