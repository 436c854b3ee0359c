"""The metrics that the API makes from outcomes and from the registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Histogram
from redis.exceptions import ConnectionError as RedisConnectionError

from service.telemetry.histogram import BulkHistogram
from service.telemetry.metrics import LiveGauges
from tasks.contract.status import Child
from tasks.store.board import Board
from tasks.store.registry import ServedModel
from tasks.telemetry.metric_names import BETWEEN_TOKENS

pytestmark = pytest.mark.unit


def samples(collector: Any) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in collector.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_bulk_histogram_is_one_that_was_told_each_value():
    values = [0.0005, 0.001, 0.0011, 0.03, 0.03, 5.0, 77.0]
    one = Histogram("h", "text", ["model"], buckets=BETWEEN_TOKENS.buckets, registry=CollectorRegistry())
    bulk = BulkHistogram("h", "text", ["model"], buckets=BETWEEN_TOKENS.buckets, registry=CollectorRegistry())
    for value in values:
        one.labels("m").observe(value)
    bulk.labels("m").observe_all(values)
    bulk.labels("m").observe_all(())
    assert samples(bulk) == samples(one)


@dataclass
class Cluster:
    """Stands for the store, the registry and the queue."""

    found: list[Child] = field(default_factory=list)
    is_away: bool = False

    def models(self) -> dict[str, ServedModel]:
        if self.is_away:
            raise RedisConnectionError
        return {"m": ServedModel("m", 512, 0)}

    def children(self) -> list[Child]:
        return self.found

    def num_running(self) -> int:
        return 2

    def result_bytes(self) -> int:
        return 7

    def num_requeued(self) -> dict[str, int]:
        return {"child_died": 3}

    def num_dead_letters(self) -> int:
        return 1

    def gauges(self) -> LiveGauges:
        return LiveGauges(cast("Any", self), cast("Any", self), lambda _model: 5, 64, Board())


def child(pid: int, steps: int, index: int = 0) -> Child:
    return Child(f"w/{pid}", "w", pid, "m", 512, slots=4, busy=1, work={"steps": steps}, index=index)


def test_a_dead_child_beside_its_replacement_is_not_counted():
    found = samples(Cluster([child(9, 120), child(7, 100), child(8, 5, index=1)]).gauges())
    assert [value for _, value in found["inference_slots"]] == [4, 4]
    work = {labels["child"]: value for labels, value in found["inference_engine_work_total"]}
    assert work == {"0": 120, "1": 5}


def test_every_reason_has_a_series():
    found = samples(Cluster().gauges())
    requeued = {labels["reason"]: value for labels, value in found["inference_requests_requeued_total"]}
    assert requeued == {"lease_lost": 0, "child_died": 3, "handed_back": 0, "found_by_janitor": 0}
    assert found["inference_store_up"] == [({}, 1)]


def test_without_redis_only_that_is_said():
    found = samples(Cluster(is_away=True).gauges())
    assert set(found) == {"inference_store_up", "inference_store_trouble"}
    assert found["inference_store_up"] == [({}, 0)]
    assert [labels["kind"] for labels, value in found["inference_store_trouble"] if value] == ["away"]
