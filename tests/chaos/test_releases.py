"""The last release and this one on one Valkey, under load: each request succeeds, once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tasks.contract import redis_names
from tasks.contract.messages import State
from tasks.engine.llama.model import Model
from tasks.queue.submit import RequestQueue
from tests.chaos.clients import Receipt
from tests.chaos.cluster import WORKERS, Checkout, Cluster, Sizes
from tests.chaos.cluster import cluster as running_cluster
from tests.chaos.forms import forms
from tests.chaos.last_release import last_release
from tests.chaos.load import Mix, busy
from tests.chaos.process import Process
from tests.chaos.verdict import Judge, settled
from tests.e2e.serving import QUICK_START
from tests.newer import NEWER, NewerRequest
from tests.waiting import wait_until

#: Clients at a time: more than the slots of one worker.
CLIENTS = 12
OLD, NEW = {"w0", "a0"}, {"w1", "a1"}


@pytest.fixture(scope="module")
def shared(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A worker and an API of the last release, ``w0`` and ``a0``; ``w1`` and ``a1`` are of this one."""
    old = last_release(tmp_path_factory.mktemp("last"))
    code = {
        "w0": Checkout(old.folder, {**old.env, **QUICK_START}),
        "a0": old,
        "w1": Checkout(None, QUICK_START),
    }
    with running_cluster(tmp_path_factory.mktemp("releases"), model_path, Sizes(), code) as made:
        yield made


@pytest.fixture
def both(shared: Cluster) -> Cluster:
    """Both releases, whole and idle."""
    shared.heal()
    shared.forget_all()
    return shared


@pytest.fixture
def judge(both: Cluster, vocabulary: Model) -> Judge:
    return Judge(both.store, vocabulary)


def processes(cluster: Cluster, names: set[str]) -> list[Process]:
    return [process for name, process in (cluster.workers | cluster.apis).items() if name in names]


def stop(cluster: Cluster, names: set[str]) -> None:
    """End some processes in an orderly way."""
    for process in processes(cluster, names):
        process.terminate()
    for process in processes(cluster, names):
        assert process.wait() == 0, process.tail()


def generators(cluster: Cluster) -> set[str]:
    """The children that have claimed requests."""
    found = (cluster.redis.hget(redis_names.record(each), "child") for each in cluster.record_ids())
    return {child.decode() for child in found if isinstance(child, bytes)}


def newer_worker(cluster: Cluster) -> Process:
    """A worker like one of a later release: it knows :class:`NewerRequest`. It is not started yet."""
    newer = f"from tasks.contract import versions; versions.REQUEST = {NEWER}"
    start = f"{newer}; from celery.__main__ import main; main()"
    options = ("--quiet", "-A", "tasks", "worker", "-n", "newer@%h", "--without-mingle", "--without-gossip")
    env = {
        "INFERENCE_REDIS_URL": cluster.redis_url,
        "INFERENCE_MODEL": str(cluster.model),
        "INFERENCE_N_CTX": str(cluster.sizes.n_ctx),
        "INFERENCE_WORKERS": "1",
        "INFERENCE_SLOTS": "2",
        "INFERENCE_THREADS": "1",
    }
    return cluster.make_process("newer", (sys.executable, "-c", start, *options), {**env, **QUICK_START})


def state(cluster: Cluster, request_id: str) -> State:
    record = cluster.store.fetch(request_id)
    assert record is not None
    return record.state


def wait_for_more(receipts: list[Receipt], num: int) -> None:
    """Wait until ``num`` more requests are complete."""
    enough = len(receipts) + num
    wait_until(lambda: len(receipts) >= enough, timeout=60 + 2 * num)


def check(cluster: Cluster, judge: Judge, receipts: list[Receipt]) -> None:
    """Check that each request succeeded, that there is no other, and that no process failed to read data."""
    for receipt in receipts:
        judge.receipt(receipt)
    assert len(settled(cluster, judge)) == len(receipts)
    for process in (*cluster.workers.values(), *cluster.apis.values()):
        troubles = [line for line in process.log.read_text().splitlines() if "[error" in line]
        assert not troubles, f"{process.name}: {troubles[0]}"


@pytest.mark.parametrize(
    "absent",
    [
        pytest.param(set(), id="side_by_side"),
        pytest.param({"w0", "a1"}, id="old_api_new_worker"),
        pytest.param({"w1", "a0"}, id="new_api_old_worker"),
    ],
)
@forms("num", CLIENTS, "CHAOS_MIXED", 300)
def test_releases_serve_each_other(num: int, absent: set[str], both: Cluster, judge: Judge) -> None:
    """The present processes go on with the requests that the absent ones left."""
    with busy(Mix(both, tokens=(20, 60)).draw, CLIENTS) as receipts:
        wait_until(lambda: all(both.running_on(both.children(each)) for each in both.workers.values()))
        stop(both, absent)
        wait_for_more(receipts, num)
    present = [worker for name, worker in both.workers.items() if name not in absent]
    assert all(generators(both) & set(both.children(worker)) for worker in present)
    check(both, judge, receipts)


@pytest.mark.e2e
def test_each_release_lists_the_others_children(both: Cluster) -> None:
    tell_more = [
        any(both.redis.exists(redis_names.heartbeat(child)) for child in both.children(worker))
        for worker in both.workers.values()
    ]
    assert tell_more == [False, True]  # so the first one really is the last release's
    for url in both.urls():
        status = httpx.get(f"{url}/v1/status")
        assert status.status_code == 200, status.text
        assert len(status.json()["children"]) == 2 * WORKERS
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == both.model_name
        assert httpx.get(f"{url}/metrics").status_code == 200


@pytest.mark.e2e
def test_request_of_a_later_format_waits_for_a_worker_that_knows_it(both: Cluster) -> None:
    stop(both, OLD)  # the last release knows no versions, so it would take requests that it can't read
    later = NewerRequest("later", both.model_name, prompt="A few words", max_tokens=8)
    RequestQueue(both.store, 10).submit(later, "", 120.0)
    wait_until(lambda: "Request later has format version 99" in both.workers["w1"].log.read_text())
    with busy(Mix(both).draw, 1) as receipts:
        wait_for_more(receipts, 2)
    assert (state(both, "later"), both.is_quiet()) == (State.QUEUED, False)
    newer = newer_worker(both)
    newer.start()
    try:
        wait_until(lambda: state(both, "later").is_final, timeout=60)
        newer.terminate()
        assert newer.wait() == 0, newer.tail()
    finally:
        newer.kill()
    record, [*_, last] = both.store.fetch("later"), both.store.read_log("later")
    assert record is not None
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert last.end is not None
    assert last.end.usage is not None
    assert 0 < last.end.usage.completion_tokens <= 8


@forms("num_rounds", None, "CHAOS_UPGRADES", 3)
def test_an_upgrade_and_the_way_back_under_load(num_rounds: int, both: Cluster, judge: Judge) -> None:
    with busy(Mix(both, tokens=(60, 140)).draw, CLIENTS) as receipts:
        for _ in range(num_rounds):
            for leaving in (NEW, OLD):
                wait_until(both.running)
                stop(both, leaving)
                wait_for_more(receipts, CLIENTS)
                both.heal()
    check(both, judge, receipts)
