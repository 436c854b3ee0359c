"""Dying children and draining workers, on the real model."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import State
from tasks.store.requests import RequestStore
from tests.e2e.serving import Served
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ONE_CHILD = ("--workers", "1", "--slots", "4", "--threads", "1", "--n-ctx", "512")


def store_of(served: Served) -> RequestStore:
    return RequestStore(Redis.from_url(served.redis_url))


def submit(served: Served, prompt: str, **fields: Any) -> str:
    body = {"prompt": prompt, "ignore_eos": True, "temperature": 0, **fields}
    headers = {"Prefer": "respond-async"}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=30)
    return str(answer.json()["id"])


def final(served: Served, request_id: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        headers = {"Prefer": "wait=10"}
        answer = httpx.get(f"{served.url}/v1/requests/{request_id}", headers=headers, timeout=30).json()
        return None if answer["status"] in ("queued", "running") else answer

    return wait_until(over, timeout=120) or {}


def wait_claimed(store: RequestStore, request_id: str, attempt: int) -> int:
    """The process that runs a request's ``attempt``."""

    def claimed() -> int | None:
        state, number, child = store.redis.hmget(redis_names.record(request_id), "state", "attempt", "child")
        if state != b"running" or int(number or 0) != attempt or not isinstance(child, bytes):
            return None
        return int(child.rpartition(b"/")[2])

    return wait_until(claimed, timeout=60, interval=0.001) or 0


def test_a_request_that_kills_its_child_takes_nobody_with_it(start_service: Callable[..., Served]) -> None:
    served = start_service(*ONE_CHILD).wait_ready()
    store = store_of(served)
    poison = submit(served, "poison", max_tokens=400)
    siblings = [submit(served, f"Number {n} is", max_tokens=40, stream=True) for n in range(3)]
    for attempt in (1, 2, 3):
        os.kill(wait_claimed(store, poison, attempt), signal.SIGKILL)
    given_up = final(served, poison)
    assert (given_up["status"], given_up["error"]["code"]) == ("failed", "attempts_exhausted")
    for request_id in siblings:
        answer = final(served, request_id)
        assert answer["status"] == "succeeded", answer
        tokens = [token for event in store.read_log(request_id) for token in event.tokens]
        assert len(tokens) == answer["response"]["usage"]["completion_tokens"] == 40


def test_a_drained_workers_requests_go_on_where_they_were(start_service: Callable[..., Served]) -> None:
    served = start_service(*ONE_CHILD, "--drain-timeout", "0.1").wait_ready()
    store = store_of(served)
    ids = [submit(served, f"Number {n} is", max_tokens=120, stream=n % 2 == 0) for n in range(4)]
    # Requests that no client streams are written seldom, except when they are handed back.
    wait_until(lambda: all((record := store.fetch(i)) and record.seq for i in ids[::2]), timeout=60)
    served.part("celery").send_signal(signal.SIGTERM)
    for request_id in ids:
        answer = final(served, request_id)
        assert answer["status"] == "succeeded", answer
        events = store.read_log(request_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert sum(len(event.tokens) for event in events) == 120
        assert answer["attempts"] == 2
        assert store.deaths(request_id) == 0
        assert store.fetch(request_id).state is State.SUCCEEDED  # type: ignore[union-attr]
    log = (served.state / "logs" / "worker.log").read_text()
    assert "WorkerLostError" not in log
