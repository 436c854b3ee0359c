"""``/openapi.json``."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from service.routes.description.document import document


def blueprint() -> Blueprint:
    """The endpoint."""
    routes = Blueprint("openapi", __name__)
    description = document()

    @routes.get("/openapi.json")
    def openapi() -> Response:
        return jsonify(description)

    return routes
