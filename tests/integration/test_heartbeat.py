"""Clients of every kind through silences that are longer than the heartbeat."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from playwright.sync_api import expect

from service.client import api_client
from tests.chaos.clients import messages as chaos_messages
from tests.integration.http_rig import MODEL, Api, ScriptedWorker
from tests.waiting import wait_until
from tests.watched import Watched
from tests.wiretap import Wiretap

pytestmark = pytest.mark.integration

ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hold"}]}


@pytest.fixture(scope="module")
def api(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, first_event_timeout=1, heartbeat=0.05)
    served.wait_ready()
    yield served
    served.stop()


def official(url: str) -> str:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    chunks = client.chat.completions.create(**ASK, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def official_async(url: str) -> str:
    async def ask() -> str:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        chunks = await client.chat.completions.create(**ASK, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])

    return asyncio.run(ask())


def ours(url: str) -> str:
    chunks = api_client.stream(url, {**ASK, "stream": True})
    return "".join(api_client.text_of(api_client.parse(chunk)) for chunk in chunks)


def event_source(url: str) -> str:
    """A reader by the standard's grammar: an event ends at a blank line, and one without data is none."""
    events, data = [], list[str]()
    for line in posted_lines(url):
        name, _, value = line.partition(":")
        if line == "" and data:
            events.append("\n".join(data))
            data = []
        elif name == "data":
            data.append(value.removeprefix(" "))
    return "".join(text_in(event) for event in events)


def blank_line_splitter(url: str) -> str:
    """A reader that takes whatever stands between two blank lines for an event."""
    blocks = "\n".join(posted_lines(url)).strip("\n").split("\n\n")
    events = [[line[6:] for line in block.split("\n") if line.startswith("data: ")] for block in blocks]
    return "".join(text_in(event) for [event] in events)


def chaos_client(url: str) -> str:
    with posted(url) as response:
        return "".join(text_in(data) for _, data in chaos_messages(response))


def posted(url: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps({**ASK, "stream": True}), headers)
    return connection.getresponse()


def posted_lines(url: str) -> list[str]:
    with posted(url) as response:
        return response.read().decode().split("\n")


def text_in(event: str) -> str:
    return "" if event == "[DONE]" else api_client.text_of(json.loads(event))


@pytest.mark.parametrize(
    "read", [official, official_async, ours, event_source, blank_line_splitter, chaos_client]
)
def test_any_client_through_silences(read: Callable[[str], str], api: Api, worker: ScriptedWorker) -> None:
    known = set(worker.held)
    with Wiretap(api.url) as tap:
        asked = api.later(read, tap.url)
        [request_id] = wait_until(lambda: set(worker.held) - known)
        for text in ("two", "three"):
            before = tap.num_comments()
            wait_until(lambda: tap.num_comments() >= before + 2 or asked.done())  # noqa: B023
            worker.say(request_id, text)
        before = tap.num_comments()
        wait_until(lambda: tap.num_comments() > before or asked.done())
        worker.finish(request_id, 3)
        assert asked.result(timeout=30) == "onetwothree"
        assert tap.num_comments() >= 5


def test_the_page_through_silences(visit: Callable[..., Watched], api: Api, worker: ScriptedWorker) -> None:
    with Wiretap(api.url) as tap:
        known, visited = set(worker.held), visit(tap.url)
        visited.send("hold")
        [request_id] = wait_until(lambda: set(worker.held) - known)
        wait_until(lambda: tap.num_comments() >= 2)
        worker.say(request_id, "two")
        worker.finish(request_id, 2)
        visited.wait_timings()
        expect(visited.answer.locator(".text")).to_have_text("onetwo")
