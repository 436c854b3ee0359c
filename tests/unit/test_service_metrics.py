"""The metrics that the API makes from outcomes and from the registry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from redis.exceptions import ConnectionError as RedisConnectionError

from service.telemetry.metrics import LiveGauges
from service.telemetry.pages import Pages
from service.telemetry.shared_metrics import SharedCounter, SharedHistogram, Totals
from tasks.contract.status import Child
from tasks.store.board import Board
from tasks.store.registry import ServedModel
from tasks.telemetry.metric_names import BETWEEN_TOKENS, REQUESTS

pytestmark = pytest.mark.unit


def samples(collector: Any) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in collector.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


HISTOGRAM, COUNTER = BETWEEN_TOKENS, REQUESTS
VALUES = st.lists(st.floats(0, 100), max_size=20)
#: What each of three processes counts, one after the other: a model, gaps, and a number of requests.
WORK = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["m", 'a "b"\n', "ü", "x" * 300]), VALUES, st.integers(0, 9))
)


@given(WORK)
def test_shared_metrics_say_what_prometheus_own_ones_say(work: list[tuple[int, str, list[float], int]]):
    pages = Pages(3)
    ours = [pages.page(number) for number in range(3)]
    registry = CollectorRegistry()
    histogram = Histogram("h", "text", ["model"], buckets=HISTOGRAM.buckets, registry=registry)
    counter = Counter("c", "text", COUNTER.labels, registry=registry)
    for process, model, values, number in work:
        histogram.labels(model)
        for value in values:
            histogram.labels(model).observe(value)
        counter.labels(model, "failed").inc(number)
        SharedHistogram(ours[process], HISTOGRAM).observe_all(values, model)
        SharedCounter(ours[process], COUNTER).add(number, model, "failed")
    found = samples(Totals(pages, [HISTOGRAM, COUNTER]))
    expected = {
        name.replace("h_", f"{HISTOGRAM.name}_").replace("c_total", COUNTER.name): by_label(pairs)
        for name, pairs in samples(registry).items()
    }
    assert {name: by_label(pairs) for name, pairs in found.items()} == {
        name: pytest.approx(pairs) for name, pairs in expected.items()
    }


def by_label(pairs: list[tuple[dict[str, str], float]]) -> dict[str, float]:
    return {json.dumps(labels, sort_keys=True): value for labels, value in pairs}


def test_a_page_goes_on_when_another_process_takes_it():
    pages = Pages(2)
    first, second = pages.take(), pages.take()
    assert (first, second, pages.take()) == (0, 1, None)
    SharedCounter(pages.page(first), COUNTER).add(3, "m", "failed")
    pages.give_back(first)
    assert pages.take() == 0
    SharedCounter(pages.page(0), COUNTER).add(4, "m", "failed")
    SharedCounter(pages.page(None), COUNTER).add(100, "m", "failed")  # there was no page for it
    assert pages.totals() == {'["inference_requests_total", "m", "failed"]': [7.0]}


def test_a_full_page_leaves_out_what_is_new(caplog: pytest.LogCaptureFixture):
    pages = Pages()
    counter = SharedCounter(pages.page(0), COUNTER)
    for number in range(20_000):
        counter.add(1, f"model {number}", "failed")
    counter.add(1, "model 0", "failed")
    totals = pages.totals()
    assert 10_000 < len(totals) < 20_000
    assert totals['["inference_requests_total", "model 0", "failed"]'] == [2.0]
    assert len(caplog.records) == 1


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
