"""Flask's error handlers: for :class:`~service.errors.ApiError` and for every other exception."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flask import Flask, jsonify, request
from redis.exceptions import MaxConnectionsError, RedisError
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from service.errors import ApiError, newer_format, overloaded, store_full, store_unavailable
from service.telemetry import request_log
from tasks.contract.versions import UnsupportedVersionError
from tasks.store.troubles import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Response

log = logging.getLogger(__name__)


def register(app: Flask, on_refused: Callable[[ApiError], None]) -> None:
    """Handle all errors of ``app``; call ``on_refused`` for each request not accepted, for the metrics."""
    pages = _Pages(on_refused)
    app.register_error_handler(ApiError, pages.api_error)
    app.register_error_handler(HTTPException, pages.http_error)
    app.register_error_handler(RedisError, pages.store_error)
    app.register_error_handler(UnsupportedVersionError, pages.newer_format)
    app.register_error_handler(Exception, pages.unexpected)


class _Pages:
    def __init__(self, on_refused: Callable[[ApiError], None]) -> None:
        self._on_refused = on_refused

    def api_error(self, error: ApiError) -> Response:
        if request.blueprint == "openai" and not error.was_accepted:
            self._on_refused(error)
        request_log.present().fail(error)
        response = jsonify(error.body)
        response.status_code = error.status
        response.headers.update(error.headers)
        return response

    def http_error(self, error: HTTPException) -> Response:
        response = self.api_error(_from_http(error))
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(error.valid_methods)
        return response

    def store_error(self, error: RedisError) -> Response:
        if isinstance(error, MaxConnectionsError):
            log.warning("%s", error)
            return self.api_error(overloaded())
        trouble = Trouble.of(error)
        log.info("%s %s: %s", request.method, request.path, trouble.text)
        return self.api_error((store_full if trouble.kind.is_full else store_unavailable)(trouble.text))

    def newer_format(self, error: UnsupportedVersionError) -> Response:
        return self.api_error(newer_format(error))

    def unexpected(self, error: Exception) -> Response:
        log.error("Unexpected error", exc_info=error)
        return self.api_error(
            ApiError(500, "internal_error", "Something went wrong in the server; see its log.")
        )


_HTTP_CODES = {
    408: "request_timeout",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
}

_HTTP_MESSAGES = {
    404: "There is nothing at this path; /openapi.json lists what there is.",
    405: "This path doesn't take this method; the Allow header says which it takes.",
    413: "The body is larger than this server takes (its max_body_bytes setting).",
}


def _from_http(error: HTTPException) -> ApiError:
    status = error.code or 500
    code = _HTTP_CODES.get(status, error.name.lower().replace(" ", "_"))
    return ApiError(status, code, _HTTP_MESSAGES.get(status) or error.description or error.name)
