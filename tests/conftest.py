"""For all tests: the settings of whoever runs them are none of theirs. For the page's: a real browser.

It is the system's Chromium, driven by Playwright.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.watched import Watched

os.environ["INFERENCE_SETTINGS"] = ""


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

    At the end, none may have complained.
    """
    from tests.watched import Watched

    visits: list[Watched] = []

    def visit(url: str, **options: Any) -> Watched:
        visits.append(Watched(browser, url, **options))
        return visits[-1]

    yield visit
    for watched in visits:
        watched.leave()
