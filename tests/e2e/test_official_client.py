"""OpenAI's own client on the real model, through silences that are longer than the heartbeat."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.serving import Served
from tests.official import Reader, client
from tests.waiting import wait_until
from tests.wiretap import Wiretap

pytestmark = pytest.mark.e2e

ONE_CHILD = ("--workers", "1", "--slots", "2", "--threads", "1", "--n-ctx", "512", "--heartbeat", "0.1")
ASK: Any = {
    "model": "SmolLM2-135M-Instruct.Q8_0",
    "messages": [{"role": "user", "content": "Explain what a mutex is."}],
    "temperature": 0,
    "max_tokens": 300,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture
def served(start_service: Callable[..., Served]) -> Served:
    return start_service(*ONE_CHILD).wait_ready()


@contextmanager
def reading(served: Served) -> Iterator[tuple[Wiretap, Callable[[], str]]]:
    """A stream that has begun; the function waits for its end and gives the whole text."""
    with Wiretap(served.url) as tap, ThreadPoolExecutor(1) as pool:
        reader = Reader(tap.url, ASK)
        text = pool.submit(reader.read)
        reader.wait_text()
        yield tap, lambda: text.result(timeout=90)


def whole(served: Served) -> str:
    return str(client(served.url).chat.completions.create(**ASK).choices[0].message.content)


def fingerprint(served: Served) -> str:
    answer = client(served.url).chat.completions.create(**{**ASK, "max_tokens": 1})
    assert answer.system_fingerprint
    return str(answer.system_fingerprint)


def child(served: Served) -> int:
    [found] = httpx.get(f"{served.url}/v1/status").json()["children"]
    return int(found["pid"])


def test_a_pause_longer_than_the_heartbeat(served: Served) -> None:
    with reading(served) as (tap, text):
        os.kill(child(served), signal.SIGSTOP)
        try:
            wait_until(lambda: tap.num_comments() >= 2)
        finally:
            os.kill(child(served), signal.SIGCONT)
        assert text() == whole(served)
    assert served.end() == 0


def test_a_killed_child(served: Served) -> None:
    with reading(served) as (tap, text):
        dying, before = child(served), fingerprint(served)
        os.kill(dying, signal.SIGSTOP)  # a child that dies at once is replaced within a heartbeat
        wait_until(lambda: tap.num_comments() >= 1)
        os.kill(dying, signal.SIGKILL)
        assert text() == whole(served)
    assert fingerprint(served) == before
    assert served.end() == 0


def test_an_answer_ends_where_the_context_does(served: Served) -> None:
    answer = client(served.url).chat.completions.create(**{**ASK, "max_tokens": 100_000})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 512
    assert served.end() == 0


def test_clients_that_try_twice_again_get_through_a_full_queue(start_service: Callable[..., Served]) -> None:
    served = start_service(*ONE_CHILD, "--slots", "1", "--queue-limit", "2").wait_ready()
    impatient = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    assert impatient.max_retries == 2

    def ask(number: int) -> str:
        body = {**ASK, "messages": [{"role": "user", "content": f"Say {number}."}], "max_tokens": 100}
        return str(impatient.chat.completions.create(**body).choices[0].finish_reason)

    assert ask(0) == "length"
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == ["length"] * 16
    refused = httpx.get(f"{served.url}/v1/status").json()["totals"]["refused"]
    assert refused["queue_full"] >= 8
    assert served.end() == 0
