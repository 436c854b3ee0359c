"""Tells whether a request's client is still connected.

It looks at gunicorn's socket, since Flask can't tell.
"""

from __future__ import annotations

import _socket
from collections.abc import Callable, Mapping
from typing import Any

#: Seconds between two checks of a silent client.
CHECK_S = 0.5


class ClientGoneError(Exception):
    """The client closed its connection before its answer was complete."""


def checker(environ: Mapping[str, Any]) -> Callable[[], None]:
    """A function that raises :class:`ClientGoneError` once the client of this WSGI request has gone."""
    sock = environ.get("gunicorn.socket")

    def check() -> None:
        if sock is not None and _is_closed(sock):
            raise ClientGoneError

    return check


def _is_closed(sock: Any) -> bool:
    """Whether the client has closed the connection; one that half-closes after its request counts as gone."""
    try:
        return not _peek(sock.fileno())
    except (BlockingIOError, InterruptedError):
        return False  # nothing to read: the client is connected but silent
    except (OSError, ValueError):
        return True


def _peek(fileno: int) -> bytes:
    # A plain socket: gevent's would wait instead of failing at once, and TLS's takes no flags.
    plain = _socket.socket(fileno=_socket.dup(fileno))
    try:
        return plain.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    finally:
        plain.close()
