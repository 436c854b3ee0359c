"""A visit to the page that notes all complaints and requests."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

from tests.waiting import wait_until

#: Milliseconds that the browser may take for anything; the machine may be busy.
PATIENCE_MS = 30_000


class Watched:
    """One visitor's page. ``options`` are Playwright's for a context, such as ``color_scheme``.

    The visitor gives ``key`` when the server asks for a key.

    Attributes:
        page: Playwright's.
        complaints: errors in the console, uncaught errors, and what was loaded from other servers.
        expected: statuses that are part of the test; the browser puts each into its console.
        is_broken_off: lost connections are part of the test, too.
    """

    def __init__(self, browser: Browser, url: str, key: str = "", **options: Any) -> None:
        self.url = url
        self.complaints: list[str] = []
        self.expected: set[int] = {401} if key else set()
        self.is_broken_off = False
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.page = self._context.new_page()
        self.page.on("console", lambda message: self._on_console(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self._on_request(request.url))
        self.page.goto(url)
        if key:
            self.page.get_by_role("textbox", name="API key").fill(key)
            self.page.get_by_role("button", name="Use it").click()
        expect(self.page.locator("[name=model] option")).not_to_have_count(0)

    def _on_console(self, kind: str, text: str) -> None:
        is_known = any(f"status of {status}" in text for status in self.expected)
        is_known |= self.is_broken_off and "net::ERR_" in text
        if kind in ("error", "warning") and not is_known:
            self.complaints.append(f"{kind}: {text}")

    def _on_request(self, url: str) -> None:
        if not url.startswith(self.url):
            self.complaints.append(f"asked elsewhere: {url}")

    def leave(self) -> None:
        """Close the page; fails when it complained."""
        self._context.close()
        assert not self.complaints, self.complaints

    def set(self, **settings: str) -> None:
        """Fill settings by the names of their fields."""
        for name, value in settings.items():
            self.page.locator(f"[name={name}]").fill(value)

    def send(self, text: str) -> Locator:
        """Send a message, and return its answer."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")
        return self.answer

    @property
    def answer(self) -> Locator:
        """The latest answer."""
        return self.page.locator(".message.assistant").last

    def wait_text(self, least: int = 1) -> str:
        """The answer's text once it has at least ``least`` characters."""
        text = self.answer.locator(".text")
        return wait_until(lambda: found if len(found := text.inner_text()) >= least else "", timeout=60)

    def wait_timings(self) -> str:
        """The line under the answer, once it is complete."""
        return self.answer.locator(".timings").inner_text()

    def show(self, view: str) -> None:
        """Go to a view by its tab."""
        self.page.get_by_role("link", name=view).click()

    def tile(self, name: str) -> Locator:
        """The dashboard's figure of that name."""
        return self.page.locator(".tile", has=self.page.get_by_text(name, exact=True)).locator("dd")

    def grave(self) -> list[str]:
        """The serious and critical findings of axe-core."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']}: {node['html'][:200]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def is_too_wide(self) -> bool:
        """Whether the page must be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))
