"""Connections that go silent without a sign: their data is dropped, and what was dropped never arrives."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import httpx
import pytest

from tests.chaos.cluster import Cluster
from tests.chaos.forms import forms
from tests.chaos.load import Mix, busy
from tests.chaos.proxy import Way
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until

Tell = Callable[[str], None]

WAYS = (tuple(Way), (Way.TO_SERVER,), (Way.TO_CLIENT,))
#: Most seconds until everything works again. It takes 2 or 3; without time-outs it takes minutes.
LIMIT_S = 30.0


def recovery_s(cluster: Cluster) -> float:
    """Seconds until every API answers a request."""
    began = time.monotonic()
    for url in cluster.urls():
        wait_until(lambda: _answers(url), timeout=LIMIT_S)  # noqa: B023
    return time.monotonic() - began


def _answers(url: str) -> bool:
    body = {"prompt": "x", "max_tokens": 1}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=LIMIT_S).status_code == 200


@forms("num_silences", 2, "CHAOS_SILENCES", 12)
def test_all_connections_of_one_process_go_silent(
    num_silences: int, cluster: Cluster, judge: Judge, tell: Tell
) -> None:
    """An API in turn with a worker; for three seconds, or for longer than a lease."""
    names = [*cluster.apis, *cluster.workers][:: len(cluster.apis)]
    times: list[float] = []
    with busy(Mix(cluster).draw, 8) as receipts:
        for number in range(num_silences):
            wait_until(cluster.running, timeout=60)
            proxy = cluster.proxies[names[number % len(names)]]
            proxy.swallow(WAYS[number // 2 % len(WAYS)])
            time.sleep(3 if number % 4 < 2 else cluster.sizes.lease + 4)  # the length of the silence
            proxy.release()
            times.append(recovery_s(cluster))
            wait_until(cluster.is_ready, timeout=LIMIT_S)
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    tell(f"ready after {', '.join(f'{each:.1f}' for each in times)} s; {len(receipts)} requests complete")


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["a0", "w0"])
def test_each_connection_by_itself_goes_silent_for_ever(
    name: str, cluster: Cluster, judge: Judge, tell: Tell
) -> None:
    pick, proxy = random.Random(3), cluster.proxies[name]
    times: list[float] = []
    with busy(Mix(cluster).draw, 8) as receipts:
        wait_until(cluster.running, timeout=60)
        for port in proxy.ports:
            proxy.swallow(pick.choice(WAYS), only=[port])
            times.append(recovery_s(cluster))
        wait_until(cluster.is_ready, timeout=LIMIT_S)
    proxy.release()
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    tell(
        f"{len(times)} connections; ready after {max(times):.1f} s at most; {len(receipts)} requests complete"
    )
