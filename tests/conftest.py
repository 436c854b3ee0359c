"""For all tests: the settings of whoever runs them are none of theirs. For the page's: a real browser.

It is the system's Chromium, driven by Playwright.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.watched import Watched

os.environ["INFERENCE_SETTINGS"] = ""

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, for the tests of one module."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser here: install one of {', '.join(_BROWSERS)} (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


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
