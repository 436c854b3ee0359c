"""What routes read from the current HTTP exchange, and the headers they add to its response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from flask import Response, request
from werkzeug.exceptions import RequestEntityTooLarge

from service.errors import ApiError, bad_request
from service.intake import api_keys, idempotency
from service.intake.json_body import parse_object
from service.intake.prefer import Prefer
from service.streaming.client_gone import checker
from tasks.queue.submit import Admission, Key


def key(body: dict[str, Any]) -> Key | None:
    """The ``Idempotency-Key`` for this endpoint and ``body``, if there is one. Raises ``ApiError`` 400."""
    headers = request.headers
    return idempotency.parse(headers.get("Idempotency-Key"), headers.get("Authorization"), request.path, body)


def body(timeout_s: float, max_bytes: int) -> dict[str, Any]:
    """The request's JSON object. Raises ``ApiError`` 400, 408 or 415, or Flask's 413 if it is too large."""
    data = _data(timeout_s, max_bytes)
    return parse_object(data, request.content_type, request.headers.get("Content-Encoding"))


def _data(timeout_s: float, max_bytes: int) -> bytes:
    too_slow = ApiError(408, "request_timeout", f"The body did not come within {timeout_s:g} s.")
    if (request.content_length or 0) > max_bytes:
        raise RequestEntityTooLarge
    try:
        with gevent.Timeout(timeout_s, too_slow):
            data: bytes = request.environ["wsgi.input"].read(max_bytes + 1)
    except TimeoutError:  # the socket's own timeout, for one read
        raise too_slow from None
    except OSError:
        raise bad_request("The body ended before it was complete.", code="bad_http") from None
    if len(data) > max_bytes:
        raise RequestEntityTooLarge
    return data


def owner() -> str:
    """Whose request this is; empty if no keys are needed here."""
    return api_keys.present_owner()


def preferences(max_wait_s: float) -> Prefer:
    """The ``Prefer`` header. Raises ``ApiError`` 400."""
    return Prefer.parse(request.headers.get("Prefer"), max_wait_s)


def client_check() -> Callable[[], None]:
    """A function that raises ``ClientGoneError`` once the client has gone."""
    return checker(request.environ)


def told(response: Response, admission: Admission) -> Response:
    """Add a header that tells the client if its request already existed."""
    if not admission.is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return response


def applied(response: Response, prefer: Prefer) -> Response:
    """Add a header that tells the client which preferences were applied."""
    if prefer.applied:
        response.headers["Preference-Applied"] = prefer.applied
        response.vary.add("Prefer")
    return response


def client_closed() -> ApiError:
    """A 499, for the log: the client of this exchange has gone."""
    return ApiError(499, "client_closed_request", "The client closed its connection.", was_accepted=True)
