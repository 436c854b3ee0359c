"""A real worker whose Valkey refuses: it waits, tells it once, and goes on without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from celery import Celery

from tasks.celery import create_app
from tasks.settings import BrokerSettings
from tests.integration.refusing import WAYS, Refusing, refusing
from tests.integration.rig import QUEUE, SLOTS, WORKERS, Rig, starting_worker, worker
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

#: Seconds in which a worker that waits must have gone on; its longest pause is 5 s.
PATIENCE_S = 15.0
#: What is not refused to a worker that runs already.
AT_START = ("a foreign binding", "no channels")
#: What is refused to a starting worker in the short form.
SHORT = ("a foreign binding", "no channels", "full")


@dataclass
class Watched:
    """A worker, and what it tells in its metrics and its log."""

    rig: Rig
    metrics_port: int
    log_start: int = 0

    def kinds(self) -> set[str]:
        """The kinds of trouble in its metrics."""
        try:
            with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except URLError:  # not started yet
            return set()
        found = [
            line for line in lines if line.startswith("inference_store_trouble{") and line.endswith(" 1.0")
        ]
        return {line.split('"')[1] for line in found}

    def news(self) -> str:
        """What it has logged during the test."""
        return self.rig.log.read_bytes()[self.log_start :].decode()

    def runs(self, name: str) -> None:
        """Have it run a task."""
        self.rig.say(name)
        wait_until(lambda: name in self.rig.done(), timeout=PATIENCE_S)


def settings(valkey: Refusing, port: int) -> dict[str, str]:
    return {"TEST_REDIS_URL": valkey.admin_url, "INFERENCE_LEASE": "100", "INFERENCE_METRICS_PORT": str(port)}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Refusing]:
    with refusing() as made:
        yield made


@pytest.fixture(scope="module")
def running(valkey: Refusing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    port, log = free_port(), tmp_path_factory.mktemp("worker") / "log"
    with worker(valkey.url, valkey.redis, log, **settings(valkey, port)) as rig:
        yield Watched(rig, port)


@pytest.fixture
def watched(running: Watched) -> Iterator[Watched]:
    """A worker that outlives every test of this module."""
    running.rig.redis.delete("started", "done", QUEUE)
    running.log_start = len(running.rig.log.read_bytes())
    yield running
    assert running.rig.process.poll() is None, running.news()
    wait_until(lambda: running.rig.free() == [SLOTS] * WORKERS, timeout=PATIENCE_S)


@pytest.mark.parametrize("name", [name for name in WAYS if name not in AT_START])
def test_a_running_worker_waits_and_goes_on(name: str, watched: Watched, valkey: Refusing) -> None:
    kind, refuse = WAYS[name]
    rig = watched.rig
    rig.hold("a")
    rig.wait_started(1)
    with refuse(valkey):
        if kind == "no_permission" or name in ("foreign leases", "foreign reserved messages"):
            rig.say("meanwhile")  # a message to take
        wait_until(lambda: kind in watched.kinds(), timeout=PATIENCE_S)
    watched.runs("after")
    rig.let_go("a")
    wait_until(lambda: "a" in rig.done(), timeout=PATIENCE_S)
    wait_until(lambda: not watched.kinds(), timeout=PATIENCE_S)
    assert watched.news().count(": waiting and trying again") <= 4, watched.news()
    assert "Unrecoverable" not in watched.news()


@pytest.mark.parametrize(
    "name", ["no ZADD", "no HSET", "no RPOP", "foreign leases", "foreign reserved messages"]
)
def test_no_message_is_lost_when_taking_it_fails(name: str, watched: Watched, valkey: Refusing) -> None:
    with WAYS[name][1](valkey):
        watched.rig.say("waits")
        wait_until(watched.kinds, timeout=PATIENCE_S)
        assert valkey.redis.llen(QUEUE) == 1
    wait_until(watched.rig.is_done("waits"), timeout=PATIENCE_S)


def test_what_needs_a_person_is_told_by_name(watched: Watched, valkey: Refusing) -> None:
    with valkey.without("-zadd"):
        watched.rig.say("a")
        wait_until(lambda: "grant it with ACL SETUSER <user> +zadd" in watched.news(), timeout=PATIENCE_S)
    wait_until(watched.rig.is_done("a"), timeout=PATIENCE_S)
    with valkey.foreign(QUEUE):
        named = "inference.m is a string and should be a list"
        wait_until(lambda: named in watched.news(), timeout=PATIENCE_S)


def test_a_wait_that_somebody_ends_costs_nothing(watched: Watched, valkey: Refusing) -> None:
    for _ in range(5):
        wait_until(lambda: valkey.unblock() > 0)
    watched.runs("after")
    assert not watched.kinds()


def publisher(valkey: Refusing) -> Celery:
    return create_app(BrokerSettings(redis_url=valkey.admin_url, model_name="m", queue_limit=1000))


@pytest.fixture(scope="module")
def other() -> Iterator[Refusing]:
    """A Valkey from which no worker of another test takes messages."""
    with refusing() as made:
        yield made


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in SHORT else pytest.mark.chaos) for each in (*WAYS, "full")]
)
def test_a_starting_worker_waits_and_goes_on(name: str, other: Refusing, tmp_path: Path) -> None:
    kind, refuse = ("full", Refusing.full) if name == "full" else WAYS[name]
    other.redis.flushall()
    port, log = free_port(), tmp_path / "log"
    with publisher(other) as app:  # a message to take
        app.send_task("say", args=["early"], task_id="early", queue=QUEUE)
    with ExitStack() as stack:
        refusal = stack.enter_context(ExitStack())
        refusal.enter_context(refuse(other))
        late_worker = starting_worker(other.url, other.redis, log, "-n", "late@%h", **settings(other, port))
        rig = stack.enter_context(late_worker)
        late = Watched(rig, port)
        wait_until(lambda: kind in late.kinds(), timeout=PATIENCE_S)
        assert rig.process.poll() is None, late.news()
        refusal.close()
        wait_until(lambda: b"ready." in log.read_bytes(), timeout=PATIENCE_S)
        late.runs("after")
        wait_until(lambda: not late.kinds(), timeout=PATIENCE_S)
        assert "Unrecoverable" not in late.news()
        assert late.news().count(": waiting and trying again") <= 4, late.news()
