"""A real worker whose children have slots: sharing out, remote control, lost children and connections."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.integration.rig import QUEUE, SLOTS, WORKERS, Rig, wait_for_renewals, worker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One worker for the tests that leave it as it was; leases are short."""
    log = tmp_path_factory.mktemp("worker") / "log"
    with Redis.from_url(valkey_url) as redis:
        redis.flushall()
        with worker(valkey_url, redis, log, INFERENCE_LEASE="1") as rig:
            wait_until(lambda: sum(rig.free()) == WORKERS * SLOTS)
            yield rig


@pytest.fixture
def rig(shared: Rig) -> Iterator[Rig]:
    shared.redis.flushall()
    yield shared
    assert wait_until(lambda: shared.free() == [SLOTS] * WORKERS)


# ---- sharing out --------------------------------------------------------------------------------


def test_tasks_are_shared_out_evenly(rig: Rig) -> None:
    names = [f"t{n}" for n in range(SLOTS)]
    rig.hold(*names)
    per_child = Counter(pid for _, pid in rig.wait_started(SLOTS))
    assert sorted(per_child.values()) == [SLOTS // WORKERS] * WORKERS
    assert rig.free() == [SLOTS - SLOTS // WORKERS] * WORKERS
    rig.let_go(*names)
    wait_until(rig.is_done(*names))


def test_worker_holds_no_more_than_its_slots(rig: Rig) -> None:
    names = [f"t{n}" for n in range(WORKERS * SLOTS + 3)]
    rig.hold(*names)
    rig.wait_started(WORKERS * SLOTS)
    assert rig.free() == [0] * WORKERS
    assert rig.num_leases() == WORKERS * SLOTS
    assert rig.redis.llen(QUEUE) == 3
    rig.let_go(*names)
    wait_until(rig.is_done(*names))


def test_many_tasks_run_once_each(rig: Rig) -> None:
    names = [f"t{n}" for n in range(100)]
    for name in names:
        rig.app.send_task("say", args=[name], task_id=name, queue=QUEUE)
    wait_until(rig.is_done(*names))


def test_remote_control_tells_the_truth(rig: Rig) -> None:
    rig.hold("a")
    rig.wait_started(1)
    inspect = rig.app.control.inspect(timeout=5, limit=1)
    assert list(inspect.ping().values()) == [{"ok": "pong"}]
    [active] = inspect.active().values()
    assert [task["id"] for task in active] == ["a"]
    pool = rig.pool()
    assert pool["max-concurrency"] == WORKERS * SLOTS
    assert [child["slots"] for child in pool["children"]] == [SLOTS] * WORKERS
    assert pool["free"] == WORKERS * SLOTS - 1
    rig.let_go("a")
    wait_until(rig.is_done("a"))


def test_terminating_a_task_is_refused(rig: Rig) -> None:
    rig.hold("a", "b")
    rig.wait_started(2)
    rig.app.control.revoke("a", terminate=True)
    wait_until(lambda: b"Not ending child" in rig.log.read_bytes())
    rig.let_go("a", "b")
    wait_until(lambda: rig.done() == ["a", "b"])


def test_pool_is_not_resized(rig: Rig) -> None:
    [reply] = rig.app.control.pool_grow(1, reply=True, limit=1, timeout=5)
    assert "fixed size" in str(reply)


# ---- losing things ------------------------------------------------------------------------------


def test_lost_child_loses_its_own_tasks_only(rig: Rig) -> None:
    names = [f"t{n}" for n in range(SLOTS)]
    rig.hold(*names)
    runs = rig.wait_started(SLOTS)
    victim = runs[0][1]
    lost = sorted(name for name, pid in runs if pid == victim)
    os.kill(victim, signal.SIGKILL)
    again = rig.wait_started(SLOTS + len(lost))[SLOTS:]
    assert sorted(name for name, _ in again) == lost
    assert victim not in {pid for _, pid in again}
    rig.let_go(*names)
    wait_until(rig.is_done(*names))


def test_lost_connection_runs_nothing_twice(rig: Rig) -> None:
    names = [f"t{n}" for n in range(SLOTS)]
    rig.hold(*names)
    rig.wait_started(SLOTS)
    for client in rig.redis.client_list():
        if client["name"] == "worker":  # the main process's client; tasks have other ones
            rig.redis.client_kill_filter(_id=client["id"])
    wait_until(lambda: b"Connecting to the queue: waiting" in rig.log.read_bytes())
    free = [SLOTS - SLOTS // WORKERS] * WORKERS
    wait_until(lambda: rig.free() == free)
    rig.hold("after")
    rig.let_go(*names, "after")
    wait_until(lambda: set(rig.done()) >= {*names, "after"} and not rig.num_leases())
    assert sorted(name for name, _ in rig.started()) == sorted([*names, "after"])


def test_leases_are_renewed_while_all_slots_are_taken(rig: Rig) -> None:
    names = [f"t{n}" for n in range(WORKERS * SLOTS)]
    rig.hold(*names)
    rig.wait_started(len(names))
    wait_for_renewals(rig.redis, 4)
    assert len(rig.started()) == len(names)
    rig.let_go(*names)
    wait_until(rig.is_done(*names))
