"""gunicorn's gevent worker, with errors in JSON and a quick, orderly shutdown."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any

import gevent
from gunicorn import util
from gunicorn.workers.ggevent import GeventWorker

from service.errors import too_many_connections
from service.server import capacity
from service.server.connections import Connections
from service.server.request_body import skip_rest
from service.server.turns import FairSocket
from service.settings import api_settings

#: Seconds between two checks for open responses while draining.
POLL_S = 0.1
#: Seconds for which a client may send after its last answer.
LINGER_S = 0.5


class _Drained(Exception):  # noqa: N818 - not an error
    """Wakes the main greenlet."""


class Worker(GeventWorker):  # type: ignore[misc]
    """Runs one API process."""

    def init_process(self) -> None:
        """Give malformed HTTP, which never reaches the application, the same JSON errors as all else."""
        self._connections = Connections(self.worker_connections - capacity.SPARE)
        self._is_draining, self._is_full, self._num_open = False, False, 0
        self._main: gevent.Greenlet | None = None
        self._settings = api_settings()
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

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """Serve a connection, or tell the client that there are too many."""
        with self._connections.opened() as has_room:
            if has_room:
                self._is_full = False
                super().handle(listener, FairSocket.of(client), addr)
            else:
                self._refuse(FairSocket.of(client))

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Answer as long as the client reads; close the connection if draining began meanwhile."""
        gevent.sleep(0)  # a client that always has a next request ready would keep all others waiting
        self._num_open += 1
        sock.settimeout(self._settings.send_timeout)
        if self._is_draining:
            req.force_close()  # tells the client to send no more on this connection
        try:
            super().handle_request(listener_name, req, sock, addr)
        except TimeoutError:
            self.log.info("Closed the connection of a client that stopped reading")
            raise StopIteration from None
        except StopIteration:
            skip_rest(req, self._settings.body_timeout)
            raise
        finally:
            self._num_open -= 1
        sock.settimeout(None)
        if self._is_draining or not skip_rest(req, self._settings.body_timeout):
            raise StopIteration

    def timeout_ctx(self) -> AbstractContextManager[None]:
        """Limit the wait for the next request on a connection; draining ends the wait early."""
        return self._connections.waiting(self.cfg.keepalive)

    def _refuse(self, client: Any) -> None:
        from service.server import wsgi

        error = too_many_connections(self._connections.limit)
        if wsgi.current is not None:
            wsgi.current.metrics.refused(error)
        if not self._is_full:
            self._is_full = True
            self.log.warning(error.message)
        with client:
            part_with(client, error.status, "Service Unavailable", error.body, error.headers)

    def _drain(self) -> None:
        from service.server import wsgi  # it imports redis, which must come after gevent's patches

        if wsgi.current is not None:
            wsgi.current.draining.set()
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while self._num_open and time.monotonic() < deadline:
            self._connections.end_waiting()
            gevent.sleep(POLL_S)
        self.alive = False
        self._connections.end_waiting()
        if self._main is not None:
            gevent.get_hub().loop.run_callback(self._main.throw, _Drained)


def write_error(sock: Any, status: int, reason: str, message: str) -> None:
    """Answer malformed HTTP with a JSON error instead of gunicorn's HTML page."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message or reason, "type": kind, "param": None, "code": "bad_http"}
    part_with(sock, status, reason, {"error": error}, {})


def part_with(
    sock: Any, status: int, reason: str, told: Mapping[str, Any], headers: Mapping[str, str]
) -> None:
    """Send a last answer in JSON, and take what the client still sends: a reset would drop the answer."""
    with suppress(OSError), gevent.Timeout(LINGER_S, False):
        sock.sendall(_answer(status, reason, told, headers))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


def _answer(status: int, reason: str, told: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    body = json.dumps(told)
    every = {
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "X-Content-Type-Options": "nosniff",
        **headers,
    }
    lines = (f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in every.items()), "", body)
    return "\r\n".join(lines).encode("latin-1")
