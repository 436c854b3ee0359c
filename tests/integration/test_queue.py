"""The API's side of the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from redis import Redis, RedisError

from tasks.contract.messages import GenerateRequest, Priority, State
from tasks.queue.errors import QueueFull
from tasks.queue.submit import RequestQueue
from tasks.store.connect import connect
from tasks.store.requests import RequestStore
from tests.ports import free_port

pytestmark = pytest.mark.integration

LIMIT = 3
REQUEST = GenerateRequest(id="r0", model="m", prompt="x")


@pytest.fixture
def store(redis: Redis) -> RequestStore:
    return RequestStore(redis)


@pytest.fixture
def queue(store: RequestStore) -> RequestQueue:
    return RequestQueue(store, LIMIT)


def submit(queue: RequestQueue, request_id: str, priority: Priority = Priority.INTERACTIVE) -> None:
    queue.submit(replace(REQUEST, id=request_id, priority=priority), "", 60.0)


def fill(queue: RequestQueue) -> None:
    for n in range(LIMIT):
        submit(queue, f"r{n}", Priority.BATCH if n else Priority.INTERACTIVE)


def test_submitted_request_waits(queue: RequestQueue, store: RequestStore) -> None:
    fill(queue)
    record = store.fetch("r0")
    assert record is not None
    assert record.state is State.QUEUED
    assert queue.waiting("m") == LIMIT
    assert queue.waiting("other") == 0


def test_refused_request_leaves_nothing(queue: RequestQueue, store: RequestStore) -> None:
    fill(queue)
    with pytest.raises(QueueFull) as full:
        submit(queue, "more")
    assert (full.value.waiting, full.value.cap) == (LIMIT, LIMIT)
    assert store.fetch("more") is None


def test_submitting_again_is_no_second_request(queue: RequestQueue) -> None:
    fill(queue)
    submit(queue, "r0")  # although the queue is full
    assert queue.waiting("m") == LIMIT


def test_refusals_keep_their_connection(queue: RequestQueue, redis: Redis) -> None:
    fill(queue)

    def refuse() -> None:
        with pytest.raises(QueueFull):
            submit(queue, "more")

    refuse()
    before = num_connections(redis)
    for _ in range(20):
        refuse()
    assert num_connections(redis) == before


def num_connections(redis: Redis) -> int:
    return cast("dict[str, int]", redis.info("stats"))["total_connections_received"]


def test_redis_that_is_away_is_an_error(store: RequestStore) -> None:
    away = RequestStore(connect(f"redis://127.0.0.1:{free_port()}/0"))
    with pytest.raises(RedisError):
        RequestQueue(away, LIMIT).submit(REQUEST, "", 60.0)
    assert store.fetch(REQUEST.id) is None
