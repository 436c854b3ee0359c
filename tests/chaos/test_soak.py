"""A long mixed load with a fault every few seconds: nothing is lost, nothing comes twice, nothing grows."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from redis import RedisError

from tasks.engine.llama.model import Model
from tests.chaos.clients import Receipt
from tests.chaos.cluster import Cluster, Sizes
from tests.chaos.cluster import cluster as running_cluster
from tests.chaos.faults import FAULTS
from tests.chaos.forms import forms
from tests.chaos.load import Mix, busy
from tests.chaos.process import memory_kb
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until

Tell = Callable[[str], None]

#: Seconds between a fault's end and the next fault, and between two samples of the usage.
PAUSE_S = (1.0, 4.0)
LOOK_S = 2.0
#: The keys that may be left in Valkey when all results have expired.
LASTING = (
    "inference:models",
    "inference:child",
    "inference:requeued",
    "inference:totals",
    "inference:recent",
    "inference:results",
    "inference:clock",
    "inference:bell:",
    "inference:claims:",
    "_kombu.binding",
)


@forms("seconds", None, "SOAK_SECONDS", 600)
def test_soak(seconds: int, model_path: Path, vocabulary: Model, tmp_path: Path, tell: Tell) -> None:
    # Many faults may hit one request, and results must expire during the test.
    sizes = Sizes(lease=4, max_attempts=50, result_ttl=20)
    with running_cluster(tmp_path, model_path, sizes) as cluster:
        judge = Judge(cluster.store, vocabulary)
        checks, mix = Checks(judge), Mix(cluster, tokens=(5, 120), leavers=0.1)
        with watched(cluster) as usage, busy(mix.draw, 10, checks.receipt) as receipts:
            told = break_for(cluster, seconds, random.Random(seconds))
        settled(cluster, judge)
        assert not checks.faults, "\n".join(checks.faults)
        _tell(tell, seconds, told, receipts, usage)
        with suppress(AssertionError):  # the next assertion says what is left
            wait_until(lambda: not _left_over(cluster), timeout=30 + sizes.result_ttl, interval=0.5)
        assert _left_over(cluster) == []
    if seconds > 120:
        usage.check_flat()


def _tell(tell: Tell, seconds: int, told: Counter[str], receipts: list[Receipt], usage: Usage) -> None:
    tell(f"{seconds} s, {sum(told.values())} faults {dict(told)}")
    tell(f"{len(receipts)} requests, {sum(not r.has_left for r in receipts)} complete, none lost or repeated")
    tell(f"{usage}")


def break_for(cluster: Cluster, seconds: float, pick: random.Random) -> Counter[str]:
    """Inject faults for some time, each into a whole cluster; returns how often each was injected."""
    until, told, rest = time.monotonic() + seconds, Counter[str](), list(FAULTS)
    while time.monotonic() < until:
        fault = rest.pop(pick.randrange(len(rest)))
        rest = rest or list(FAULTS)
        fault(cluster, pick)
        told[fault.__name__] += 1
        wait_until(cluster.is_ready, timeout=90, interval=0.05)
        time.sleep(pick.uniform(*PAUSE_S))  # the pace of the faults
    return told


class Checks:
    """Checks receipts as soon as they are complete, since results expire; keeps what is wrong."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.faults: list[str] = []

    def receipt(self, receipt: Receipt) -> None:
        """Check one receipt. Any thread may call this."""
        try:
            wait_until(lambda: receipt.has_left or self._is_judged(receipt), timeout=60)
        except AssertionError as fault:
            self.faults.append(str(fault))

    def _is_judged(self, receipt: Receipt) -> bool:
        try:
            self._judge.receipt(receipt)
        except RedisError:  # Valkey is away now
            return False
        return True


def _left_over(cluster: Cluster) -> list[str]:
    names = (key.decode() for key in cluster.redis.scan_iter(count=1000))
    return [name for name in names if not name.startswith(LASTING)]


@dataclass
class Usage:
    """Samples of what the cluster uses."""

    memory_mb: list[float] = field(default_factory=list)
    valkey_mb: list[float] = field(default_factory=list)
    connections: list[float] = field(default_factory=list)

    def look(self, cluster: Cluster) -> None:
        """Add a sample, unless a process is away."""
        if not cluster.is_ready():
            return
        info = cluster.redis.info()
        self.connections.append(int(info["connected_clients"]))
        self.valkey_mb.append(int(info["used_memory"]) / 1e6)
        self.memory_mb.append(sum(memory_kb(pid) for pid in _pids(cluster)) / 1e3)

    def thirds(self) -> dict[str, tuple[float, float]]:
        """Medians of the first third and of the last third of each series."""
        series = {"MB": self.memory_mb, "MB in Valkey": self.valkey_mb, "connections": self.connections}
        return {name: _ends(values) for name, values in series.items()}

    def check_flat(self) -> None:
        """Check that nothing grows."""
        for name, (first, last) in self.thirds().items():
            assert last < 1.5 * first + 5, f"{name}: {first} → {last}"

    def __str__(self) -> str:
        return ", ".join(f"{name}: {first:.0f} → {last:.0f}" for name, (first, last) in self.thirds().items())


def _ends(values: list[float]) -> tuple[float, float]:
    third = max(1, len(values) // 3)
    return (median(values[:third]), median(values[-third:])) if values else (0.0, 0.0)


def _pids(cluster: Cluster) -> Iterator[int]:
    for process in (*cluster.workers.values(), *cluster.apis.values()):
        yield process.pid
        yield from process.children()


@contextmanager
def watched(cluster: Cluster) -> Iterator[Usage]:
    """Sample the cluster's usage during the block."""
    usage, enough = Usage(), threading.Event()

    def look() -> None:
        while not enough.wait(LOOK_S):
            try:
                usage.look(cluster)
            except (RedisError, psutil.Error, AssertionError):
                continue  # a process is away, as the test wants

    thread = threading.Thread(target=look, name="usage")
    thread.start()
    try:
        yield usage
    finally:
        enough.set()
        thread.join()
