"""Real workers that stop or die, and Celery's own pools."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from redis import Redis

from tests.integration.rig import QUEUE, wait_for_renewals, worker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


# ---- draining -----------------------------------------------------------------------------------


def test_drain_lets_tasks_finish_and_puts_back_the_rest(
    valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    settings = {"INFERENCE_LEASE": "1", "INFERENCE_DRAIN_TIMEOUT": "1000"}
    with worker(valkey_url, redis, tmp_path / "log", **settings) as rig:
        rig.hold("quick", "slow", "slow2")
        rig.wait_started(3)
        rig.stop(signal.SIGTERM)
        wait_until(lambda: b"Stopping" in rig.log.read_bytes())
        rig.hold("next")  # is left to other workers
        rig.let_go("quick")
        wait_for_renewals(redis, 4)
        assert len(rig.started()) == 3
        rig.stop(signal.SIGINT)  # ends the wait
        assert rig.process.wait(timeout=30) == 0
    assert rig.done() == ["quick"]
    assert not rig.num_leases()
    waiting = rig.listed(QUEUE)  # served from the right
    assert json.loads(waiting[0])["headers"]["id"] == "next"
    assert len(waiting) == 3


def test_drain_ends_after_its_time(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    with worker(valkey_url, redis, tmp_path / "log", INFERENCE_DRAIN_TIMEOUT="1") as rig:
        rig.hold("a")
        rig.wait_started(1)
        rig.stop(signal.SIGTERM)
        assert rig.process.wait(timeout=30) == 0
    assert not rig.num_leases()
    assert redis.llen(QUEUE) == 1


def test_drain_of_an_idle_worker_ends_at_once(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    with worker(valkey_url, redis, tmp_path / "log", INFERENCE_DRAIN_TIMEOUT="1000") as rig:
        rig.stop()
        assert rig.process.wait(timeout=30) == 0


def test_killed_workers_requests_run_on_another(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    with worker(valkey_url, redis, tmp_path / "first", "-n", "first@%h", INFERENCE_LEASE="1") as first:
        first.hold("a")
        first.wait_started(1)
        first.process.kill()
    with worker(valkey_url, redis, tmp_path / "second", "-n", "second@%h", INFERENCE_LEASE="1") as second:
        second.wait_started(2)
        second.let_go("a")
        wait_until(second.is_done("a"))


# ---- Celery's own pools -------------------------------------------------------------------------


# "processes" is Celery's own prefork pool: Celery takes the name "prefork" for the configured pool.
@pytest.mark.parametrize("pool", ["processes", "threads", "solo"])
def test_stock_pools_renew_leases_and_drain(pool: str, valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    settings = {"INFERENCE_LEASE": "1", "INFERENCE_DRAIN_TIMEOUT": "1"}
    log = tmp_path / "log"
    with worker(valkey_url, redis, log, f"--pool={pool}", "--concurrency=2", **settings) as rig:
        rig.hold("quick")
        rig.wait_started(1)
        wait_for_renewals(redis, 4)
        rig.let_go("quick")
        wait_until(rig.is_done("quick"))
        rig.hold("slow")
        rig.wait_started(2)
        rig.stop()
        assert rig.process.wait(timeout=30) == 0
    assert not rig.num_leases()
    assert redis.llen(QUEUE) == 1
