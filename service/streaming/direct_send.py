"""A stream's short way to its client: chunks that go out at once, past the layers of WSGI and gunicorn.

A token has some 200 bytes, and what it costs is the code it passes through. Knows gunicorn's socket and the
chunked encoding that gunicorn has begun; whatever can't go out at once is left to the long way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gevent import socket


class Wire:
    """Writes to a response whose headers are sent and whose own greenlet writes nothing meanwhile."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    @classmethod
    def of(cls, environ: Mapping[str, Any]) -> Wire | None:
        """The one of a WSGI request, if a body without a length goes out in plain HTTP/1.1 chunks."""
        sock = environ.get("gunicorn.socket")
        is_chunked = environ.get("SERVER_PROTOCOL") == "HTTP/1.1"
        return cls(sock) if is_chunked and type(sock) is socket.socket else None

    def try_send(self, data: bytes) -> bool:
        """Send ``data`` as one chunk without waiting; whether that is done, but for :meth:`flush`."""
        if self._rest:
            return False
        chunk = b"%X\r\n%b\r\n" % (len(data), data)
        try:
            sent = self._sock.send(chunk, 0, 0.0)
        except OSError:  # the client reads too slowly or is gone: the long way waits, or finds out
            return False
        if sent < len(chunk):
            self._rest = chunk[sent:]
        return True

    def flush(self) -> None:
        """Send what is left of a chunk that found only some room. Raises ``OSError`` as the long way does."""
        if self._rest:
            self._sock.sendall(self._rest)
            self._rest = b""
