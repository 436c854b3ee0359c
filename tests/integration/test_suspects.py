"""A child runs one request at a time whose children have died; a child that ends hands its requests back."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Event, Lock
from typing import Any, cast

import pytest
from redis import Redis
from redis.backoff import NoBackoff

from tasks.contract import redis_names
from tasks.contract.messages import ErrorCode, State
from tasks.settings import WorkerSettings
from tasks.store.board import Board
from tasks.worker.attempt import Attempt
from tasks.worker.child import HandedBackError, WorkerChild
from tasks.worker.deliver import Deliverer
from tests.integration.life import MAX_ATTEMPTS, Life
from tests.newer import NewerRequest

pytestmark = pytest.mark.integration


class Child(WorkerChild):
    """A child without an engine: the test ends the attempts that it starts."""

    def __init__(self, life: Life) -> None:
        self._store, self._attempts = life.store, life.attempts
        self._settings = WorkerSettings(model_name="m", max_attempts=MAX_ATTEMPTS, workers=1, threads=1)
        self._card = cast("Any", self)
        self.id = "child"
        self._probing, self._leaving = Lock(), Event()
        self._backoff = cast("Any", NoBackoff())
        self._observers, self._deliverer, self._board = (), Deliverer(life.attempts), Board()
        self.started: Queue[Attempt] = Queue()

    def _start(self, attempt: Attempt) -> None:
        if attempt.request.prompt == "broken":
            raise RuntimeError("as asked")
        self.started.put(attempt)


@pytest.fixture
def life(redis: Redis) -> Life:
    return Life(redis)


def suspect(life: Life, *request_ids: str) -> None:
    life.accept(*request_ids)
    for request_id in request_ids:
        life.redis.hset(redis_names.record(request_id), "deaths", MAX_ATTEMPTS - 1)


def test_suspects_are_tried_one_after_the_other(life: Life) -> None:
    child = Child(life)
    suspect(life, "a", "b")
    life.accept("fresh")
    with ThreadPoolExecutor(3) as slots:
        tasks = [slots.submit(child.run, name) for name in ("a", "b")]
        first = child.started.get(timeout=10)
        tasks.append(slots.submit(child.run, "fresh"))
        fresh = child.started.get(timeout=10)
        assert fresh.id == "fresh"  # a fresh request need not wait
        other = "b" if first.id == "a" else "a"
        assert life.state(other) is State.QUEUED  # not even claimed: its child may die because of the first
        first.proven.set()
        second = child.started.get(timeout=10)
        assert second.id == other
        for name in ("a", "b", "fresh"):
            assert life.state(name) is State.RUNNING
        for run in (first, second, fresh):
            run.stop()
        for task in tasks:
            task.result(10)


def test_suspect_that_is_cancelled_does_not_wait_for_its_turn(life: Life) -> None:
    child = Child(life)
    suspect(life, "a", "b")
    with ThreadPoolExecutor(2) as slots:
        tasks = {name: slots.submit(child.run, name) for name in ("a", "b")}
        first = child.started.get(timeout=10)
        other = "b" if first.id == "a" else "a"
        life.store.cancel(other)
        tasks[other].result(10)
        assert not first.proven.is_set()
        first.stop()
        tasks[first.id].result(10)


def test_run_that_is_handed_back_ends_its_task_so(life: Life) -> None:
    child = Child(life)
    life.accept("a", "late")
    with ThreadPoolExecutor(1) as slots:
        task = slots.submit(child.run, "a")
        child.started.get(timeout=10).stop(is_handed_back=True)
        with pytest.raises(HandedBackError):
            task.result(10)
    child._leaving.set()
    with pytest.raises(HandedBackError):
        child.run("late")
    assert life.state("late") is State.QUEUED


def test_request_of_a_newer_format_is_handed_back_unclaimed(
    life: Life, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.worker.child.NEWER_PAUSE_S", 0.0)
    life.accept("r", kind=NewerRequest)
    with caplog.at_level(logging.WARNING), pytest.raises(HandedBackError):
        Child(life).run("r")
    assert (life.state("r"), life.record("r").attempt) == (State.QUEUED, 0)
    assert [
        "request r has format version 99, and this process knows versions up to 1" in text
        for text in caplog.messages
    ] == [True]


def test_request_that_can_not_be_started_ends_with_an_error(life: Life) -> None:
    child = Child(life)
    life.accept("r")
    request = life.record("r").request.to_json().replace('"x"', '"broken"')
    life.redis.hset(redis_names.record("r"), "request", request)
    child.run("r")
    error = life.end("r").error
    assert error is not None
    assert error.code is ErrorCode.INTERNAL


def test_request_that_can_not_be_read_ends_with_an_error(life: Life) -> None:
    child = Child(life)
    life.accept("r")
    life.redis.hset(redis_names.record("r"), "request", '{"id": "r"}')
    child.run("r")
    error = life.end("r").error
    assert error is not None
    assert "can't read this request" in error.message
    assert life.state("r") is State.FAILED
