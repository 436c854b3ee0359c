"""The page in a real browser over the real service."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.serving import Served
from tests.waiting import wait_until
from tests.watched import Watched

pytestmark = pytest.mark.e2e

Visit = Callable[..., Watched]
SHAPE = ("--workers", "1", "--slots", "2", "--threads", "1", "--queue-limit", "2", "--n-ctx", "2048")
LONG = {"max_tokens": "1500", "temperature": "0"}


@pytest.fixture(scope="module")
def served(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = Served(tmp_path_factory.mktemp("page"), *SHAPE).wait_ready()
    yield service
    assert service.end() == 0, service.output.read_text()


def status(served: Served) -> dict[str, Any]:
    return dict(httpx.get(f"{served.url}/v1/status", timeout=30).json())


def num_running(served: Served) -> int:
    return int(status(served)["models"][0]["running"])


def occupy(served: Served, num: int) -> list[str]:
    """Send ``num`` long asynchronous requests, and return their addresses."""
    body = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True}
    headers = {"Prefer": "respond-async"}
    sent = [httpx.post(f"{served.url}/v1/completions", json=body, headers=headers) for _ in range(num)]
    return [str(answer.headers["Location"]) for answer in sent]


def go_on_and_on(visited: Watched) -> None:
    """Let the next answer go on to its limit."""
    visited.set(**LONG)
    visited.page.get_by_label("Go on past the end of the text").check()


def test_an_answer_streams_and_can_be_had_again(visit: Visit, served: Served) -> None:
    visited = visit(served.url)
    visited.set(system="You are brief.", max_tokens="24", temperature="0", stop="ZZZ")
    visited.page.get_by_label("Go on past the end of the text").check()
    answer = visited.send("What is a mutex?")
    expect(answer).to_have_attribute("aria-busy", "true")
    assert visited.wait_text()
    assert "24 tokens" in visited.wait_timings()
    text = visited.wait_text()
    expect(answer).to_have_attribute("aria-busy", "false")
    visited.page.get_by_role("button", name="Regenerate").click()
    expect(visited.page.locator(".message.assistant .timings")).to_have_count(1)
    assert visited.wait_text() == text
    visited.page.reload()
    assert visited.wait_text() == text


@pytest.mark.parametrize("kind", ["curl", "Python"])
def test_the_request_can_be_sent_from_elsewhere(visit: Visit, served: Served, kind: str) -> None:
    visited = visit(served.url, permissions=["clipboard-read", "clipboard-write"])
    visited.set(system="It's 5 o'clock.", max_tokens="5", top_k="3")
    visited.send('Say "hi" and don\'t stop.')
    visited.wait_timings()
    visited.page.get_by_role("button", name=f"Copy as {kind}").click()
    visited.page.get_by_text(f"Copied as {kind}.").wait_for()
    code = visited.page.evaluate("navigator.clipboard.readText()")
    command = ["bash", "-c", code] if kind == "curl" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert kind == "Python" or done.stdout.endswith("data: [DONE]\n\n")


def test_stop_frees_the_slot(visit: Visit, served: Served) -> None:
    visited = visit(served.url)
    go_on_and_on(visited)
    visited.send("Count.")
    visited.wait_text()
    assert num_running(served) == 1
    before = status(served)["totals"]["requests"].get("cancelled", 0)
    visited.page.get_by_role("button", name="Stop").click()
    visited.page.get_by_text("Stopped.", exact=True).first.wait_for()
    wait_until(lambda: num_running(served) == 0)
    assert status(served)["totals"]["requests"]["cancelled"] == before + 1
    assert visited.wait_text()


def test_a_full_queue_is_said(visit: Visit, served: Served) -> None:
    visited = visit(served.url)
    visited.expected.add(429)
    held = occupy(served, 2)
    wait_until(lambda: num_running(served) == 2)
    held += occupy(served, 2)
    visited.set(max_tokens="5")
    visited.send("Me too?")
    alert = visited.answer.get_by_role("alert")
    expect(alert).to_contain_text("The queue is full: 2 requests wait")
    expect(alert).to_contain_text("A place is likely free in")
    visited.show("Dashboard")
    expect(visited.tile("Waiting")).to_have_text("2 of 2")
    expect(visited.tile("Slots busy")).to_have_text("2 of 2")
    expect(visited.tile("Refused")).to_contain_text("queue_full")
    visited.show("Playground")
    for location in held:
        httpx.delete(served.url + location)
    visited.page.get_by_role("button", name="Regenerate").click()
    assert visited.wait_timings()


def test_a_stream_goes_on_when_its_child_dies(visit: Visit, served: Served) -> None:
    visited = visit(served.url)
    workers = visited.page.get_by_role("region", name="Workers")
    [child] = status(served)["children"]
    visited.show("Dashboard")
    expect(workers.get_by_text(f"child {child['pid']}")).to_be_visible()
    visited.show("Playground")
    go_on_and_on(visited)
    visited.set(max_tokens="120")
    visited.send("Count.")
    before = visited.wait_text(20)
    os.kill(child["pid"], signal.SIGKILL)
    told = visited.wait_timings()
    assert "120 tokens" in told
    assert "attempt 2" in told
    assert visited.wait_text().startswith(before[:20])
    [latest, *_] = status(served)["recent"]
    assert (latest["attempts"], latest["generated_tokens"]) == (2, 120)
    visited.show("Dashboard")
    expect(workers.locator(".gone")).to_contain_text(f"child {child['pid']}")
    expect(workers.locator(".child:not(.gone)")).to_contain_text("0 of 2 slots busy")
    row = visited.page.locator("tbody tr").first
    expect(row).to_contain_text("succeeded120")
    told = row.get_by_role("img").get_attribute("aria-label") or ""
    assert re.fullmatch(r"queue .*, other .*, prefill .*, decode .*", told)


def test_a_stream_goes_on_when_its_api_process_dies(visit: Visit, served: Served) -> None:
    visited = visit(served.url)
    visited.is_broken_off = True
    go_on_and_on(visited)
    visited.set(max_tokens="200")
    visited.send("Count.")
    visited.wait_text(20)
    [process] = served.part("gunicorn").children()
    with visited.page.expect_request("**/v1/requests/*/events"):
        process.kill()
    assert "200 tokens" in visited.wait_timings()
    [latest, *_] = status(served)["recent"]
    assert (latest["state"], latest["generated_tokens"], latest["attempts"]) == ("succeeded", 200, 1)
    answer = httpx.get(f"{served.url}/v1/requests/{latest['id']}", timeout=30).json()
    whole = answer["response"]["choices"][0]["message"]["content"]
    assert words(visited.wait_text()) == words(whole)


def words(markdown: str) -> list[str]:
    """The words of a text, which are the same in its Markdown and on the page."""
    return re.findall(r"[a-z]+", markdown.lower())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(visit: Visit, served: Served, scheme: Any) -> None:
    visited = visit(served.url, color_scheme=scheme)
    visited.set(max_tokens="4")
    visited.send("Hello")
    visited.wait_timings()
    assert (luminance(visited) < 0.5) == (scheme == "dark")
    assert visited.grave() == []
    visited.show("Dashboard")
    expect(visited.page.locator("tbody tr")).not_to_have_count(0)
    assert visited.grave() == []
    visited.page.get_by_role("button", name="Theme").click()
    assert luminance(visited) > 0.5
    visited.page.get_by_role("button", name="Theme").click()
    assert luminance(visited) < 0.5


def luminance(visited: Watched) -> float:
    """How light the page's background is, 0 to 1."""
    colour = visited.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3 / 255


@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024), (1440, 900)])
def test_the_conversation_scrolls_and_the_page_does_not(
    visit: Visit, served: Served, width: int, height: int
) -> None:
    visited = visit(served.url, viewport={"width": width, "height": height})
    page, log = visited.page, visited.page.get_by_label("Conversation", exact=True)
    settings = page.get_by_text("Settings", exact=True)
    if width < 800:  # they are folded there
        settings.click()
    go_on_and_on(visited)
    if width < 800:
        settings.click()
    visited.send("Count to a thousand, one number a line.")
    wait_until(lambda: log.evaluate("log => log.scrollHeight > 2 * log.clientHeight"), timeout=60)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    expect(page.get_by_role("button", name="Stop")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("button", name="Jump to latest")).to_have_count(0)  # the growing end is in view
    log.evaluate("log => log.scrollTo(0, -log.scrollHeight)")
    page.get_by_role("button", name="Jump to latest").click()
    wait_until(lambda: log.evaluate("log => log.scrollTop > -2"))
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.", exact=True).first.wait_for()


def test_a_phone(visit: Visit, served: Served) -> None:
    visited = visit(served.url, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page = visited.page
    visited.page.get_by_text("Settings", exact=True).click()
    visited.set(max_tokens="30")
    visited.page.get_by_text("Settings", exact=True).click()
    visited.send("Say one very very very very very very very very very very very very long sentence.")
    visited.wait_timings()
    assert not visited.is_too_wide()
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)
    expect(visited.answer).to_be_in_viewport()
    assert visited.grave() == []
    visited.show("Dashboard")
    expect(page.locator("tbody tr")).not_to_have_count(0)
    assert not visited.is_too_wide()
    assert visited.grave() == []


def test_keyboard_only(visit: Visit, served: Served) -> None:
    visited = visit(served.url)
    go_on_and_on(visited)
    visited.page.reload()
    keyboard = visited.page.keyboard
    expect(visited.page.get_by_label("Message", exact=True)).to_be_focused()
    keyboard.type("Count")
    keyboard.press("Shift+Enter")
    keyboard.type("now")
    keyboard.press("Enter")
    expect(visited.page.locator(".message.user .text")).to_have_text("Count\nnow")
    visited.wait_text()
    keyboard.press("Escape")
    expect(visited.answer.get_by_text("Stopped.")).to_be_visible()
    walk_to(visited, "Regenerate", "Shift+Tab")
    keyboard.press("Enter")
    expect(visited.page.get_by_role("button", name="Stop")).to_be_visible()
    walk_to(visited, "Stop", "Tab")
    keyboard.press("Space")
    expect(visited.answer.get_by_text("Stopped.")).to_be_visible()
    walk_to(visited, "Dashboard", "Shift+Tab")
    keyboard.press("Enter")
    expect(visited.page.get_by_role("link", name="Dashboard")).to_have_attribute("aria-current", "page")


def walk_to(visited: Watched, name: str, key: str) -> None:
    """Move the focus with ``key`` until it is visibly on the element that is called ``name``."""
    for _ in range(60):
        focused = visited.page.evaluate("document.activeElement.textContent")
        if focused == name:
            break
        visited.page.keyboard.press(key)
    assert focused == name
    assert visited.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
