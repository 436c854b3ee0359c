"""gunicorn's gevent worker, with errors in JSON and a quick, orderly end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import gevent
from gunicorn import util
from gunicorn.workers.ggevent import GeventWorker


class Worker(GeventWorker):  # type: ignore[misc]
    """Serves one API process."""

    def init_process(self) -> None:
        """Answer malformed HTTP, which never reaches the application, in the shape of all other errors."""
        self._idle: dict[gevent.Greenlet, gevent.Timeout] = {}
        util.write_error = write_error
        super().init_process()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take nothing new, and don't wait for clients that merely keep their connection."""
        super().handle_exit(sig, frame)
        gevent.spawn(self._drain)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Close a connection after the response that was under way when draining began."""
        super().handle_request(listener_name, req, sock, addr)
        if not self.alive:
            raise StopIteration

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Bound the wait for the next request on a connection, which draining cuts short."""
        with gevent.Timeout(self.cfg.keepalive, False) as timeout:
            greenlet = gevent.getcurrent()
            self._idle[greenlet] = timeout
            try:
                yield
            finally:
                del self._idle[greenlet]

    def _drain(self) -> None:
        from service import wsgi  # it imports redis, which must come after gevent's patches

        if wsgi.current is not None:
            wsgi.current.draining.set()
        for greenlet in list(self._idle):
            gevent.get_hub().loop.run_callback(self._wake, greenlet)  # throwing is the hub's privilege

    def _wake(self, greenlet: gevent.Greenlet) -> None:
        if (timeout := self._idle.get(greenlet)) is not None:
            greenlet.throw(timeout)


def write_error(sock: Any, status: int, reason: str, message: str) -> None:
    """Answer what isn't HTTP; replaces gunicorn's page of HTML."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message or reason, "type": kind, "param": None, "code": "bad_http"}
    body = json.dumps({"error": error})
    head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    util.write_nonblock(sock, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode("latin-1"))
