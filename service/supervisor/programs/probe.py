"""Checks a service from outside."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from service.supervisor.errors import ServiceError


def answers_200(url: str) -> Callable[[], bool]:
    """A probe: whether a GET of ``url`` has the status 200."""
    parts = urlsplit(url)

    def probe() -> bool:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2)
        try:
            connection.request("GET", parts.path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return probe


class Address(NamedTuple):
    """Where a part will listen, and the options that say so."""

    host: str
    port: int
    options: str = "--host or --port"


def require_free(host: str, port: int, options: str = "--host or --port") -> None:
    """Raise ``ServiceError``, which names the ``options``, unless a server can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ServiceError(
            f"Can't listen on {host}, port {port} ({error.strerror}); pass another {options}."
        ) from error


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of ``host`` that nothing listens on now."""
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def local_url(host: str, port: int) -> str:
    """The URL of a server that listens on ``host``, as this machine reaches it."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
