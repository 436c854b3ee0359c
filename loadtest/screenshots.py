"""``python -m loadtest.screenshots``: the page's two views under a real load, as PNG files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from loadtest.browsers import NoBrowserError, chromium
from service.cli.common.private import service_at
from service.client.api_client import ClientError, chat_body, measure, served_model
from service.client.load_run import SYSTEM_PROMPT, prompts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: The service's shape, unless variables say otherwise: several children, and a queue that gets full.
SHAPE = {"WORKERS": 2, "THREADS": 1, "SLOTS": 4, "N_CTX": 2048, "QUEUE_LIMIT": 8}
QUESTION = "Write a Python function that reverses a list, in a code block, and explain it in a numbered list."
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PATIENCE_MS = 120_000


@click.command()
@click.option("--url", help="A running service; default: start one.")
@click.option("--clients", default=19, show_default=True, help="Clients that ask all the time.")
@click.option("--seconds", default=90, show_default=True, help="How long they do so before the pictures.")
@click.option("--dest", type=click.Path(path_type=Path), default=Path("docs/screenshots"), show_default=True)
def main(url: str | None, clients: int, seconds: int, dest: Path) -> None:
    """Take pictures of the playground and the dashboard."""
    for name, value in SHAPE.items():
        os.environ.setdefault(f"INFERENCE_{name}", str(value))
    dest.mkdir(parents=True, exist_ok=True)
    try:
        with service_at(url) as reached, chromium() as browser:
            play(browser, reached, dest)
            with load(reached, clients):
                look(browser, reached, dest, seconds)
    except (NoBrowserError, ClientError) as error:
        raise click.ClickException(str(error)) from error


def play(browser: Browser, url: str, dest: Path) -> None:
    """Get one answer in the playground, then take pictures of it."""
    page = browser.new_page(viewport={"width": 1200, "height": 760})
    page.goto(url)
    page.locator("[name=system]").fill("You are a helpful assistant.")
    for name, value in {"temperature": "0", "max_tokens": "200", "repeat_penalty": "1.1"}.items():
        page.locator(f"[name={name}]").fill(value)
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator(".timings").wait_for(timeout=PATIENCE_MS)
    pictures(page, dest, "playground")


def look(browser: Browser, url: str, dest: Path, seconds: int) -> None:
    """Watch the dashboard for a while, then take pictures of it."""
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    page.goto(f"{url}/#dashboard")
    page.locator("tbody tr").first.wait_for(timeout=PATIENCE_MS)
    page.wait_for_timeout(seconds * 1000)
    pictures(page, dest, "dashboard")


def pictures(page: Page, dest: Path, name: str) -> None:
    """Take pictures of the page in each colour scheme, then close it."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=dest / f"{name}-{scheme}.png")
    page.close()


@contextmanager
def load(url: str, num_clients: int) -> Iterator[None]:
    """Run clients that ask for one answer after another, of many lengths, while the context is open."""
    is_over = threading.Event()
    model, each = served_model(url), zip(prompts(), count(), strict=False)
    lock = threading.Lock()

    def ask() -> None:
        while not is_over.is_set():
            with lock:
                prompt, number = next(each)
            body = chat_body(model, prompt, SYSTEM_PROMPT, 16 + 37 * number % 120, ignore_eos=True)
            with suppress(ClientError):  # refused: the client asks again after a while
                measure(url, body)
                continue
            is_over.wait(3)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    yield
    is_over.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
