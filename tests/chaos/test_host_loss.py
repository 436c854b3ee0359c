"""A worker host dies, is cut off, or is paused: its leases end, and its requests go on on another host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from service.supervisor.programs.probe import answers_200
from tests.chaos import namespaces
from tests.chaos.clients import Streamer
from tests.chaos.cluster import WORKERS, Cluster, Running
from tests.chaos.forms import forms
from tests.chaos.load import Mix, answers, at_once, busy, chat
from tests.chaos.process import Process
from tests.chaos.timing import resumed_after, summary
from tests.chaos.verdict import Judge, settled
from tests.official import Reader, client
from tests.waiting import wait_until
from tests.wiretap import Wiretap

Tell = Callable[[str], None]


@forms("num_losses", 1, "CHAOS_LOSSES", 20)
def test_a_lost_hosts_requests_run_elsewhere(
    num_losses: int, cluster: Cluster, judge: Judge, tell: Tell
) -> None:
    waits = []
    with busy(Mix(cluster).draw, 8) as receipts:
        for _ in range(num_losses):
            lost, victims = _one_at_work(cluster, cluster.workers.values())
            since = time.monotonic()
            lost.kill()
            waits += resumed_after(cluster, victims, since)
            lost.start()
            wait_until(cluster.is_ready, timeout=60)
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    tell(f"{len(receipts)} requests; lease {cluster.sizes.lease} s; loss to next claim: {summary(waits)}")


@forms("num_losses", 1, "CHAOS_LOSSES", 20)
def test_the_official_client_through_a_lost_host(num_losses: int, cluster: Cluster, tell: Tell) -> None:
    """The silence is longer than the lease, and the lease longer than the heartbeat."""
    url, comments = cluster.urls()[0], 0
    body: dict[str, Any] = chat("health", 200, temperature=0, model=cluster.model_name)
    body["extra_body"] = {"ignore_eos": body.pop("ignore_eos")}
    expected = client(url).chat.completions.create(**body).choices[0].message.content
    for _ in range(num_losses):
        with Wiretap(url) as tap, ThreadPoolExecutor(4) as pool:
            readers = [Reader(tap.url, body) for _ in range(4)]
            texts = [pool.submit(reader.read) for reader in readers]
            for reader in readers:
                reader.wait_text()
            lost, _ = _one_at_work(cluster, cluster.workers.values())
            lost.kill()
            assert {text.result(timeout=90) for text in texts} == {expected}
            comments += tap.num_comments()
            lost.start()
            wait_until(cluster.is_ready, timeout=60)
    assert comments
    tell(f"{comments} comments in {num_losses} losses")


@forms("num_pauses", 1, "CHAOS_PAUSES", 5)
def test_a_host_that_wakes_too_late_is_not_heard(num_pauses: int, cluster: Cluster, judge: Judge) -> None:
    for _ in range(num_pauses):
        with at_once(_streamers(cluster)) as futures:
            sleeper, victims = _one_at_work(cluster, cluster.workers.values())
            sleeper.pause()
            resumed_after(cluster, victims, time.monotonic())
            sleeper.resume()
        for receipt in answers(futures):
            judge.receipt(receipt)
        settled(cluster, judge)
        wait_until(lambda: _is_idle(cluster, sleeper))  # noqa: B023


def _streamers(cluster: Cluster, model: str | None = None) -> list[Streamer]:
    pick = random.Random(8)
    body = chat("sleep", 60, **({} if model is None else {"model": model}))
    return [Streamer(cluster.urls(), body, pick) for _ in range(8)]


def _one_at_work(cluster: Cluster, workers: Iterable[Process]) -> tuple[Process, list[Running]]:
    """A worker that runs requests, and these requests."""
    several = list(workers)

    def look() -> list[tuple[Process, list[Running]]]:
        pairs = ((worker, cluster.running_on(cluster.children(worker))) for worker in several)
        return [(worker, victims) for worker, victims in pairs if victims]

    return wait_until(look, timeout=60)[0]


def _is_idle(cluster: Cluster, worker: Process) -> bool:
    """Whether all its children are there and no engine of them computes."""
    pids = worker.children()
    busy = [child.busy for child in cluster.registry.children() if child.pid in pids]
    return busy == [0] * WORKERS


@forms("num_cuts", None, "CHAOS_CUT_HOSTS", 5)
def test_a_host_behind_a_dead_proxy_is_replaced(num_cuts: int, cluster: Cluster, judge: Judge) -> None:
    """Its connections stay open but carry no data: the host runs, and can't renew its leases."""
    for _ in range(num_cuts):
        with at_once(_streamers(cluster)) as futures:
            lost, victims = _one_at_work(cluster, cluster.workers.values())
            cluster.proxies[lost.name].hold()
            resumed_after(cluster, victims, time.monotonic())
            cluster.proxies[lost.name].release()
        for receipt in answers(futures):
            judge.receipt(receipt)
        settled(cluster, judge)
        cluster.heal()


# ---- separate hosts -------------------------------------------------------------------------------


FAR = "far"


@contextmanager
def far_workers(cluster: Cluster, net: namespaces.Network) -> Iterator[list[Process]]:
    """A worker on each host; only these workers serve the model :data:`FAR`."""
    cluster.redis.config_set("bind", f"127.0.0.1 {net.gateway}")
    url = cluster.url_by(net.gateway, cluster.valkey_port)
    started = [
        cluster.make_worker(host.name, url, "--model-name", FAR, prefix=host.prefix) for host in net.hosts
    ]
    try:
        for worker in started:
            worker.start()
        wait_until(lambda: all(map(cluster.is_worker_ready, started)), timeout=60)
        wait_until(lambda: all(map(_knows_far, cluster.urls())))
        yield started
    finally:
        for worker in started:
            worker.kill()
        cluster.redis.config_set("bind", "127.0.0.1")


def _knows_far(url: str) -> bool:
    return answers_200(f"{url}/v1/models/{FAR}")()


@forms("num_cuts", 1, "CHAOS_CUT_HOSTS", 5)
def test_a_host_whose_cable_is_pulled(num_cuts: int, cluster: Cluster, judge: Judge, tell: Tell) -> None:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    waits = []
    with namespaces.network(2) as net, far_workers(cluster, net) as workers:
        for _ in range(num_cuts):
            with at_once(_streamers(cluster, FAR)) as futures:
                lost, victims = _one_at_work(cluster, workers)
                host = net.hosts[workers.index(lost)]
                host.cut_off()
                waits += resumed_after(cluster, victims, time.monotonic())
                host.join()
            for receipt in answers(futures):
                judge.receipt(receipt)
            settled(cluster, judge)
            wait_until(lambda: cluster.is_worker_ready(lost), timeout=60)  # noqa: B023
    tell(f"lease {cluster.sizes.lease} s; cut to next claim: {summary(waits)}")
