"""``/v1/status``: the state of the whole service, in the shape of :mod:`tasks.contract.status`."""

from __future__ import annotations

from dataclasses import asdict

from flask import Blueprint, Response, jsonify

from service.routes import exchange
from service.runtime import Runtime


def blueprint(runtime: Runtime) -> Blueprint:
    """The endpoint."""
    routes = Blueprint("status", __name__)

    @routes.get("/v1/status")
    def status() -> Response:
        response = jsonify(asdict(runtime.status.read(exchange.owner())))
        response.headers["Cache-Control"] = "no-store"
        return response

    return routes
