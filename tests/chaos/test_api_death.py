"""An API process dies: its clients get the rest from another one, and requests without a client go on."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

from tests.chaos.clients import Streamer
from tests.chaos.cluster import Cluster
from tests.chaos.forms import forms
from tests.chaos.load import Mix, answers, at_once, busy, chat
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until

Tell = Callable[[str], None]


@forms("num_kills", 1, "CHAOS_API_KILLS", 20)
def test_clients_resume_at_another_api(num_kills: int, cluster: Cluster, judge: Judge, tell: Tell) -> None:
    pick = random.Random(10)
    with busy(Mix(cluster, tokens=(40, 120)).draw, 8) as receipts:
        for _ in range(num_kills):
            wait_until(cluster.running)
            lost = pick.choice(list(cluster.apis.values()))
            lost.kill()
            lost.start()
            wait_until(cluster.is_ready, timeout=60)
    for receipt in receipts:
        assert judge.receipt(receipt).attempt == 1
    settled(cluster, judge)
    tell(f"{len(receipts)} requests complete, {sum(receipt.num_breaks for receipt in receipts)} breaks")


@forms("num_streams", 4, "CHAOS_STREAMS", 12)
def test_an_api_process_is_replaced_by_its_parent(num_streams: int, cluster: Cluster, judge: Judge) -> None:
    """gunicorn starts a new process on the same port; clients come back to it."""
    pick, name = random.Random(11), "a0"
    clients = [Streamer([cluster.api_url(name)], chat("APIs", 120), pick) for _ in range(num_streams)]
    with at_once(list(clients)) as futures:
        wait_until(lambda: sum(client.receipt.last_id > 5 for client in clients) > 1, timeout=60)
        [process] = cluster.apis[name].children()
        os.kill(process, signal.SIGKILL)
    receipts = answers(futures)
    for receipt in receipts:
        judge.receipt(receipt)
    assert any(receipt.num_breaks for receipt in receipts)
    settled(cluster, judge)
