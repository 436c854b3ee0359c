"""A TCP relay between a client and a server that keeps what the server sends."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Wiretap:
    """Relays connections to the server at ``server_url``; ``url`` is where clients reach it through here.

    ``heard`` has all that the server has sent so far, on all connections.
    """

    def __init__(self, server_url: str) -> None:
        place = urlsplit(server_url)
        self._target = place.hostname or "", place.port or 80
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Wiretap:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def num_comments(self) -> int:
        """Comments of server-sent events heard so far."""
        return sum(line.startswith(b":") for line in self.heard.split(b"\n"))

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for source, sink, is_heard in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._relay, args=(source, sink, is_heard), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, is_heard: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_heard:
                    self.heard += data
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
