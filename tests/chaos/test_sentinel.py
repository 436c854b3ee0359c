"""Valkey's primary dies, Sentinels promote its replica, and the service goes on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.engine.llama.model import Model
from tests.chaos.clients import Receipt
from tests.chaos.cluster import Sizes
from tests.chaos.load import Mix, busy
from tests.chaos.sentinels import SentinelCluster
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until

#: Clients at a time.
CLIENTS = 6


@pytest.fixture
def cluster(model_path: Path, tmp_path: Path) -> Iterator[SentinelCluster]:
    """One worker, one API, a primary, its replica and three Sentinels."""
    made = SentinelCluster(tmp_path, model_path, Sizes(workers=1, apis=1))
    try:
        made.heal()
        yield made
    finally:
        made.close()


@pytest.mark.chaos
def test_streams_go_on_with_the_promoted_replica(
    cluster: SentinelCluster, vocabulary: Model, tell: Callable[[str], None]
) -> None:
    judge = Judge(cluster.store, vocabulary)
    with busy(Mix(cluster).draw, CLIENTS) as receipts:
        wait_until(lambda: len(receipts) >= CLIENTS, timeout=60)
        wait_until(cluster.running)
        num_before = len(receipts)
        cluster.valkey.kill()
        wait_until(cluster.promoted, timeout=60)
        wait_until(cluster.is_ready, timeout=60)
        num_after = len(receipts) + CLIENTS  # what ran at the fail-over is complete then
        wait_until(lambda: len(receipts) >= num_after + CLIENTS, timeout=60)
    for receipt in receipts[:num_before] + receipts[num_after:]:
        judge.receipt(receipt)
    for receipt in receipts[num_before:num_after]:
        check_whole(receipt)
    settled(cluster, judge)
    tell(f"{len(receipts)} requests complete over a fail-over")


def check_whole(receipt: Receipt) -> None:
    """Check a request that may have run at the fail-over: what the replica lacked is generated again."""
    assert receipt.is_done, receipt
    assert receipt.usage is not None
    numbers = [number for number, _ in receipt.pieces]
    assert numbers == sorted(set(numbers)), f"{receipt.id}: repeated or out of order"
