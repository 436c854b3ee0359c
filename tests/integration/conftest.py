"""A worker without a model, for the tests of the HTTP side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.integration.http_rig import ScriptedWorker


@pytest.fixture(scope="module")
def worker(valkey_url: str) -> Iterator[ScriptedWorker]:
    """A scripted worker on an empty Valkey."""
    with Redis.from_url(valkey_url) as client:
        client.flushall()
    scripted = ScriptedWorker(valkey_url)
    scripted.start()
    yield scripted
    scripted.stop()
