"""The system's Chromium, for programs that look at the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class NoBrowserError(Exception):
    """There is no browser here; the text says what to install."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window. Raises :class:`NoBrowserError`."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        raise NoBrowserError(f"no browser here: install one of {', '.join(_NAMES)} (apt install chromium)")
    with sync_playwright() as playwright:
        # Chromium's sandbox seldom works in containers; here it opens only this project's page.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
