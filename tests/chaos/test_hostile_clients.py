"""Clients that mean harm beside clients that want answers: every answer comes whole, and no process dies."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

import pytest

from tests.chaos.cluster import Cluster
from tests.chaos.forms import forms, number
from tests.chaos.load import Mix, busy
from tests.chaos.verdict import Judge, settled
from tests.hostile import KINDS, Kind, pestered
from tests.waiting import wait_until

#: Kinds that use as much of a processor as they get.
GREEDY = KINDS[:3]


@forms("num", 8, "CHAOS_HOSTILE", 100)
def test_all_kinds_at_once(num: int, cluster: Cluster, judge: Judge) -> None:
    ports = list(cluster.ports.values())
    with ExitStack() as stack:
        for kind in KINDS:
            stack.enter_context(pestered(ports, kind, 1 if kind in GREEDY else 4))
        attacked(cluster, judge, num)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_each_kind(kind: Kind, cluster: Cluster, judge: Judge) -> None:
    with pestered(list(cluster.ports.values()), kind, 4 if kind in GREEDY else 50):
        attacked(cluster, judge, int(number("CHAOS_HOSTILE", 100)) // 4)


@forms("num_idle", 300, "CHAOS_IDLE", 3000)
def test_idle_connections_by_the_hundred(num_idle: int, cluster: Cluster, judge: Judge) -> None:
    with ExitStack() as stack:
        for number_ in range(num_idle):
            port = list(cluster.ports.values())[number_ % len(cluster.ports)]
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            with suppress(OSError):
                sock.sendall(b"GET / HTTP/1.1\r\nHo"[: number_ % 20])
        attacked(cluster, judge, 8)


def attacked(cluster: Cluster, judge: Judge, num: int) -> None:
    """During an attack ``num`` answers come whole, and no API process is replaced."""
    before = {name: api.children() for name, api in cluster.apis.items()}
    with busy(Mix(cluster, (10, 30)).draw, 4) as receipts:
        wait_until(lambda: len(receipts) >= num, timeout=300)
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    assert {name: api.children() for name, api in cluster.apis.items()} == before
