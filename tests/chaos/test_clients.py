"""Clients that vanish, and clients that never read: no other client is disturbed, and no slot stays taken."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.chaos.cluster import Cluster
from tests.chaos.forms import forms
from tests.chaos.load import Mix, busy, chat
from tests.chaos.process import memory_kb
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until

Tell = Callable[[str], None]


@forms("num_requests", 12, "CHAOS_LEAVERS", 500)
def test_clients_vanish_at_random(num_requests: int, cluster: Cluster, judge: Judge) -> None:
    with busy(Mix(cluster, (40, 80), leavers=0.5).draw, 8) as receipts:
        wait_until(lambda: len(receipts) >= num_requests, timeout=600)
    for receipt in receipts:
        (judge.partial if receipt.has_left else judge.receipt)(receipt)
    states = {record.state for record in settled(cluster, judge).values()}
    assert any(receipt.has_left for receipt in receipts)
    assert {"cancelled", "succeeded"} <= states


#: Answers that a client asks for on one connection and never reads; each is some 40 kB.
NUM_UNREAD = 50


@forms("num_deaf", 4, "CHAOS_DEAF", 50)
def test_clients_that_never_read(num_deaf: int, cluster: Cluster, judge: Judge, tell: Tell) -> None:
    pids = [pid for api in cluster.apis.values() for pid in api.children()]
    with deaf(cluster, num_deaf), busy(Mix(cluster, (10, 40)).draw, 6) as receipts:
        wait_until(lambda: len(receipts) >= 6, timeout=60)
        before = sum(map(memory_kb, pids))
        wait_until(lambda: len(receipts) >= 4 * num_deaf, timeout=300)
        after = sum(map(memory_kb, pids))
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    tell(f"{num_deaf} deaf clients; memory of the APIs {before / 1e3:.0f} → {after / 1e3:.0f} MB")
    assert after < before + 50_000


@contextmanager
def deaf(cluster: Cluster, num: int) -> Iterator[None]:
    """Clients that send many requests on a connection and read no byte of the answers."""
    pick = random.Random(12)
    sockets = [_deaf(pick.choice(cluster.urls())) for _ in range(num)]
    try:
        yield
    finally:
        for sock in sockets:
            sock.close()


def _deaf(url: str) -> socket.socket:
    place = urlsplit(url)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect((place.hostname, place.port))
    body = json.dumps({**chat("silence", 150), "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    sock.setblocking(False)
    sock.send(request * NUM_UNREAD)
    return sock
