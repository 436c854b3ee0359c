"""Valkey's primary dies, Sentinels promote its replica, and the service goes on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.engine.llama.model import Model
from tests.chaos.cluster import Sizes
from tests.chaos.load import Mix, busy
from tests.chaos.sentinels import SentinelCluster
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until


@pytest.fixture
def cluster(model_path: Path, tmp_path: Path) -> Iterator[SentinelCluster]:
    """One worker, one API, a primary, its replica and three Sentinels."""
    made = SentinelCluster(tmp_path, model_path, Sizes(workers=1, apis=1))
    try:
        made.heal()
        yield made
    finally:
        made.close()


@pytest.mark.e2e
@pytest.mark.chaos
def test_streams_go_on_with_the_promoted_replica(
    cluster: SentinelCluster, vocabulary: Model, tell: Callable[[str], None]
) -> None:
    judge = Judge(cluster.store, vocabulary)
    with busy(Mix(cluster).draw, 6) as receipts:
        wait_until(lambda: len(receipts) >= 6, timeout=60)
        wait_until(cluster.running)
        cluster.valkey.kill()
        wait_until(cluster.promoted, timeout=60)
        num_before = len(receipts)
        wait_until(cluster.is_ready, timeout=60)
        wait_until(lambda: len(receipts) >= num_before + 12, timeout=60)
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    tell(f"{len(receipts)} requests complete over a fail-over")
