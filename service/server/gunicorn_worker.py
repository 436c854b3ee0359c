"""gunicorn's gevent worker, with errors in JSON and a quick, orderly shutdown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import gevent
from gunicorn import util
from gunicorn.workers.ggevent import GeventWorker

from service.settings import api_settings

#: Seconds between two checks for open responses while draining.
POLL_S = 0.1


class _Drained(Exception):  # noqa: N818 - not an error
    """Wakes the main greenlet."""


class Worker(GeventWorker):  # type: ignore[misc]
    """Runs one API process."""

    def init_process(self) -> None:
        """Give malformed HTTP, which never reaches the application, the same JSON errors as all else."""
        self._idle: dict[gevent.Greenlet, gevent.Timeout] = {}
        self._is_draining, self._num_open = False, 0
        self._main: gevent.Greenlet | None = None
        self._send_timeout = api_settings().send_timeout
        util.write_error = write_error
        super().init_process()

    def run(self) -> None:
        """Serve until drained.

        gunicorn's own loop would notice only at its next turn, up to a second later.
        """
        self._main = gevent.getcurrent()
        with suppress(_Drained):
            super().run()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining: take no new requests, and don't wait for idle connections.

        Until the open responses are complete, new requests get a 503. A load balancer that asks ``/readyz``
        learns more from a 503 than from a refused connection.
        """
        if not self._is_draining:
            self._is_draining = True
            gevent.spawn(self._drain)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Answer as long as the client reads; close the connection if draining began meanwhile."""
        self._num_open += 1
        sock.settimeout(self._send_timeout)
        if self._is_draining:
            req.force_close()  # tells the client to send no more on this connection
        try:
            super().handle_request(listener_name, req, sock, addr)
        except TimeoutError:
            self.log.info("Closed the connection of a client that stopped reading")
            raise StopIteration from None
        finally:
            self._num_open -= 1
        sock.settimeout(None)
        if self._is_draining:
            raise StopIteration

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Limit the wait for the next request on a connection; draining ends the wait early."""
        with gevent.Timeout(self.cfg.keepalive, False) as timeout:
            greenlet = gevent.getcurrent()
            self._idle[greenlet] = timeout
            try:
                yield
            finally:
                del self._idle[greenlet]

    def _drain(self) -> None:
        from service.server import wsgi  # it imports redis, which must come after gevent's patches

        if wsgi.current is not None:
            wsgi.current.draining.set()
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while self._num_open and time.monotonic() < deadline:
            self._close_idle()
            gevent.sleep(POLL_S)
        self.alive = False
        self._close_idle()
        if self._main is not None:
            gevent.get_hub().loop.run_callback(self._main.throw, _Drained)

    def _close_idle(self) -> None:
        for greenlet in list(self._idle):
            gevent.get_hub().loop.run_callback(self._wake, greenlet)  # only the hub may throw

    def _wake(self, greenlet: gevent.Greenlet) -> None:
        if (timeout := self._idle.get(greenlet)) is not None:
            greenlet.throw(timeout)


def write_error(sock: Any, status: int, reason: str, message: str) -> None:
    """Answer malformed HTTP with a JSON error instead of gunicorn's HTML page."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message or reason, "type": kind, "param": None, "code": "bad_http"}
    body = json.dumps({"error": error})
    head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    util.write_nonblock(sock, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode("latin-1"))
