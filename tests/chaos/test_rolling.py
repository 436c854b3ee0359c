"""Orderly ends under load: a worker hands back requests that it can't finish, an API closes its streams."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.cluster import Cluster
from tests.chaos.forms import forms
from tests.chaos.load import Mix, busy
from tests.chaos.process import Process
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until

Tell = Callable[[str], None]


@forms("num_rounds", 1, "CHAOS_ROUNDS", 10)
def test_a_rolling_restart_loses_nothing(num_rounds: int, cluster: Cluster, judge: Judge, tell: Tell) -> None:
    with busy(Mix(cluster, tokens=(60, 140)).draw, 8) as receipts:
        for _ in range(num_rounds):
            for process in (*cluster.workers.values(), *cluster.apis.values()):
                wait_until(cluster.running)
                _restart(process)
                wait_until(cluster.is_ready, timeout=60)
    attempts = [judge.receipt(receipt).attempt for receipt in receipts]
    settled(cluster, judge)
    tell(f"{len(receipts)} requests complete, {sum(count > 1 for count in attempts)} handed back")
    assert max(attempts) > 1


def _restart(process: Process) -> None:
    process.terminate()
    assert process.wait() == 0, process.tail()
    process.start()
