"""Valkey refuses commands under load: nothing ends, and no request is lost or answered twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.cluster import Cluster
from tests.chaos.forms import forms
from tests.chaos.load import Mix, busy
from tests.chaos.verdict import Judge, settled
from tests.ports import free_port
from tests.waiting import wait_until

Tell = Callable[[str], None]
Refusal = Callable[[Cluster], "Iterator[None]"]


def _do(cluster: Cluster, *command: str) -> None:
    cluster.redis.execute_command(*command)  # type: ignore[no-untyped-call]


@contextmanager
def read_only(cluster: Cluster) -> Iterator[None]:
    cluster.redis.replicaof("127.0.0.1", free_port())
    try:
        yield
    finally:
        _do(cluster, "REPLICAOF", "NO", "ONE")


@contextmanager
def configured(cluster: Cluster, name: str, value: str, normal: str) -> Iterator[None]:
    cluster.redis.config_set(name, value)
    try:
        yield
    finally:
        cluster.redis.config_set(name, normal)


@contextmanager
def without(cluster: Cluster, command: str) -> Iterator[None]:
    """The default user, which all programs here have, lacks one command."""
    _do(cluster, "ACL", "SETUSER", "default", f"-{command}")
    try:
        yield
    finally:
        _do(cluster, "ACL", "SETUSER", "default", f"+{command}")


@contextmanager
def unblocked(cluster: Cluster) -> Iterator[None]:
    """Somebody ends every wait for messages with an error, for a while."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        for client in cluster.redis.client_list(_type="normal"):
            if client["cmd"] in ("brpop", "blpop"):
                _do(cluster, "CLIENT", "UNBLOCK", client["id"], "ERROR")
    yield


REFUSALS: tuple[Callable[[Cluster], object], ...] = (
    read_only,
    lambda cluster: configured(cluster, "maxmemory", "1", "0"),
    lambda cluster: configured(cluster, "min-replicas-to-write", "1", "0"),
    lambda cluster: without(cluster, "zadd"),
    lambda cluster: without(cluster, "xadd"),
    lambda cluster: without(cluster, "rpop"),
    lambda cluster: without(cluster, "evalsha"),
    lambda cluster: without(cluster, "publish"),
    unblocked,
)


@forms("num_refusals", 4, "CHAOS_REFUSALS", 27)
def test_refusals_under_load(num_refusals: int, cluster: Cluster, judge: Judge, tell: Tell) -> None:
    pick = random.Random(7)
    starts = [process.num_starts for process in cluster.workers.values()]
    longest = 0.0
    with busy(Mix(cluster).draw, 8) as receipts:
        for number in range(num_refusals):
            wait_until(cluster.running, timeout=60)
            with REFUSALS[number % len(REFUSALS)](cluster):  # type: ignore[attr-defined]
                time.sleep(pick.uniform(0.5, 3))  # how long it refuses
            began = time.monotonic()
            wait_until(cluster.is_ready, timeout=60)
            longest = max(longest, time.monotonic() - began)
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    assert [process.num_starts for process in cluster.workers.values()] == starts
    tell(f"{num_refusals} refusals, ready after {longest:.1f} s at most, {len(receipts)} requests complete")


@pytest.mark.parametrize(
    "key", ["inference:totals", "inference:active", "inference:running", "inference:models"]
)
@pytest.mark.chaos
def test_a_key_of_another_type_under_load(key: str, cluster: Cluster, judge: Judge) -> None:
    """What the key had is lost, but no process ends, and requests are answered again once it is gone."""
    with busy(Mix(cluster).draw, 8):
        wait_until(lambda: cluster.running() and cluster.redis.exists(key), timeout=60)
        cluster.redis.rename(key, f"test:{key}")
        cluster.redis.set(key, "not ours")
        time.sleep(2)  # how long it is there
        cluster.redis.rename(f"test:{key}", key)
        wait_until(cluster.is_ready, timeout=60)
    settled(cluster, judge)
