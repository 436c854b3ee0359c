"""The body of a request: malformed ones are a 400, and the rest of an unwanted one is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gunicorn.http.errors import ParseException

from service.errors import bad_request

#: Bytes to skip at once.
PIECE_BYTES = 1 << 18
#: The most bytes to read of a body that nobody wants, so that the connection may go on.
MAX_REST_BYTES = 16 << 20

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Body:
    """WSGI's ``wsgi.input``: gunicorn's, with malformed chunks as errors of the client."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes. Raises ``ApiError`` 400 for malformed chunks."""
        try:
            piece: bytes = self._body.read(size)
        except ParseException as error:
            raise bad_request(f"The body is malformed: {error}", code="bad_http") from None
        return piece


def with_body(application: Application) -> Application:
    """``application``, given each request's :class:`Body`."""

    def application_with_body(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["wsgi.input"] = Body(environ["wsgi.input"])
        return application(environ, start_response)

    return application_with_body


def skip_rest(request: Any, timeout_s: float) -> bool:
    """Read what is left of the body of gunicorn's ``request``; say whether it came to its end in time."""
    left = MAX_REST_BYTES
    with gevent.Timeout(timeout_s, False):
        try:
            while left > 0:
                piece = request.body.read(PIECE_BYTES)
                if not piece:
                    return True
                left -= len(piece)
        except (OSError, ParseException):
            return False
    return False
