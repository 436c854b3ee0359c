"""``/metrics``, for Prometheus."""

from __future__ import annotations

from contextlib import suppress

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST
from redis.exceptions import RedisError

from service.runtime import Runtime


def blueprint(runtime: Runtime) -> Blueprint:
    """The endpoint."""
    routes = Blueprint("metrics", __name__)

    @routes.get("/metrics")
    def metrics() -> Response:
        with suppress(RedisError):  # a gauge shows that Redis can't be reached
            runtime.outcomes.catch_up()
        return Response(runtime.metrics.render(), content_type=CONTENT_TYPE_LATEST)

    return routes
