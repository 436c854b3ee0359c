"""Sends a stream's chunks straight to the client's socket, past the layers of WSGI and gunicorn.

A token has only some 200 bytes, so most of its cost is the code it passes through. This module uses
gunicorn's socket and continues the chunked encoding that gunicorn began. A chunk that can't be sent at once
goes the usual way, through WSGI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gevent import socket


class DirectSender:
    """Writes to a response after its headers were sent, while the response's own greenlet writes nothing."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    @classmethod
    def of(cls, environ: Mapping[str, Any]) -> DirectSender | None:
        """The sender of a WSGI request; ``None`` unless its body is sent in chunks over plain HTTP/1.1."""
        sock = environ.get("gunicorn.socket")
        is_chunked = environ.get("SERVER_PROTOCOL") == "HTTP/1.1"
        return cls(sock) if is_chunked and type(sock) is socket.socket else None

    def try_send(self, data: bytes) -> bool:
        """Try to send ``data`` as one chunk without waiting; return whether it was accepted.

        The socket may have room for only a part; :meth:`flush` sends the rest.
        """
        if self._rest:
            return False
        chunk = b"%X\r\n%b\r\n" % (len(data), data)
        try:
            sent = self._sock.send(chunk, 0, 0.0)
        except OSError:  # the client reads too slowly or is gone: the usual way waits or fails
            return False
        if sent < len(chunk):
            self._rest = chunk[sent:]
        return True

    def flush(self) -> None:
        """Send the rest of a chunk that was sent only in part. Raises ``OSError``, as the usual way does."""
        if self._rest:
            self._sock.sendall(self._rest)
            self._rest = b""
