"""Valkey dies and comes back, or its connections are cut: no request is lost or answered twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import psutil

from tests.chaos.clients import Receipt
from tests.chaos.cluster import Cluster
from tests.chaos.forms import forms
from tests.chaos.load import Mix, busy
from tests.chaos.verdict import Judge, settled
from tests.e2e.serving import are_gone
from tests.waiting import wait_until

Tell = Callable[[str], None]


def check_all(receipts: Iterable[Receipt], judge: Judge) -> int:
    """Check that every answer is whole; returns how many requests took more than one attempt."""
    return sum(judge.receipt(receipt).attempt > 1 for receipt in receipts)


@forms("num_cuts", 40, "CHAOS_CUTS", 1000)
def test_connections_cut_one_by_one(num_cuts: int, cluster: Cluster, judge: Judge, tell: Tell) -> None:
    pick = random.Random(9)
    with busy(Mix(cluster).draw, 8) as receipts:
        num_cut = 0
        while num_cut < num_cuts:
            wait_until(cluster.running)
            num_cut += _cut_one(cluster, pick)
            time.sleep(0.05)  # the pace of the cuts
        wait_until(cluster.is_ready, timeout=60)
    num_twice = check_all(receipts, judge)
    settled(cluster, judge)
    tell(f"{num_cut} connections cut, {len(receipts)} requests complete, {num_twice} run twice")
    assert num_twice == 0


def _cut_one(cluster: Cluster, pick: random.Random) -> int:
    """Cut one connection of any process, by the proxy or by Valkey itself; returns how many were cut."""
    if pick.random() < 0.5:
        return pick.choice(list(cluster.proxies.values())).cut_one(pick)
    clients = cluster.redis.client_list()
    own = cluster.redis.client_id()
    others: list[dict[str, Any]] = [client for client in clients if int(client["id"]) != own]
    if not others:
        return 0
    return int(cluster.redis.client_kill_filter(_id=pick.choice(others)["id"]))


@forms("num_cuts", 2, "CHAOS_FULL_CUTS", 50)
def test_all_connections_cut_at_once(num_cuts: int, cluster: Cluster, judge: Judge, tell: Tell) -> None:
    num_cut = 0
    with busy(Mix(cluster).draw, 8) as receipts:
        for _ in range(num_cuts):
            wait_until(cluster.running)
            num_cut += sum(proxy.cut_all() for proxy in cluster.proxies.values())
            wait_until(lambda: _are_back(cluster), timeout=60)
    num_twice = check_all(receipts, judge)
    settled(cluster, judge)
    tell(f"{num_cut} connections cut, {len(receipts)} requests complete, {num_twice} run twice")
    assert num_twice == 0


def _are_back(cluster: Cluster) -> bool:
    return all(proxy.num_connections > 1 for proxy in cluster.proxies.values()) and cluster.is_ready()


@forms("num_kills", 1, "CHAOS_REDIS_KILLS", 20)
def test_valkey_is_killed_and_reads_its_file(
    num_kills: int, cluster: Cluster, judge: Judge, tell: Tell
) -> None:
    with busy(Mix(cluster).draw, 8) as receipts:
        for _ in range(num_kills):
            wait_until(cluster.running)
            cluster.valkey.kill()
            wait_until(lambda: not any(map(cluster.is_api_ready, cluster.apis)))
            _is_refused_politely(cluster)
            cluster.start_valkey()
            wait_until(cluster.is_ready, timeout=60)
    num_twice = check_all(receipts, judge)
    settled(cluster, judge)
    tell(f"{num_kills} kills, {len(receipts)} requests complete, {num_twice} run twice")


def _is_refused_politely(cluster: Cluster) -> None:
    for url in cluster.urls():
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=30)
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["error"]["code"] == "store_unavailable"


@forms("num_holes", None, "CHAOS_HOLES", 20)
def test_connections_that_stall_for_a_moment(num_holes: int, cluster: Cluster, judge: Judge) -> None:
    """Stalls shorter than a lease: the held data arrives late, and no other worker takes over."""
    with busy(Mix(cluster).draw, 8) as receipts:
        for _ in range(num_holes):
            wait_until(cluster.running)
            for proxy in cluster.proxies.values():
                proxy.hold()
            time.sleep(cluster.sizes.lease / 4)  # the length of the stall
            for proxy in cluster.proxies.values():
                proxy.release()
            wait_until(lambda: _are_back(cluster), timeout=60)
    assert check_all(receipts, judge) == 0
    settled(cluster, judge)


@forms("num_parents", 1, "CHAOS_PARENTS", 20)
def test_a_parent_killed_in_a_storm_of_requests(num_parents: int, cluster: Cluster, judge: Judge) -> None:
    """At the moment of the kill many requests are published and taken; each accepted one is answered."""
    for _ in range(num_parents):
        with busy(Mix(cluster, tokens=(1, 4), pollers=1).draw, 16) as receipts:
            wait_until(lambda: len(receipts) >= 20, timeout=60)
            orphans = [
                psutil.Process(pid) for worker in cluster.workers.values() for pid in worker.children()
            ]
            for worker in cluster.workers.values():
                worker.kill_alone()
            cluster.heal()
            wait_until(lambda: are_gone(orphans), timeout=60)  # noqa: B023
        check_all(receipts, judge)
        settled(cluster, judge)
