"""Metrics against counted truth after a mixed load with faults; deploy/'s dashboard and alerts on them."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tasks.contract import redis_names
from tasks.store.requests import RequestStore
from tasks.telemetry import metric_names
from tests.e2e.monitoring import Prometheus, panels, prometheus
from tests.e2e.serving import Served
from tests.e2e.test_recovery import final, store_of, wait_claimed
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

SLOTS, LIMIT = 4, 4
SHAPE = ("--workers", "1", "--slots", str(SLOTS), "--threads", "1", "--n-ctx", "1024")
API = ("--api-workers", "2", "--queue-limit", str(LIMIT), "--drain-timeout", "5", "--lease", "60")
#: One prompt for all, so that its length is known.
PROMPT = "The quick brown fox"
SHORT, LONG = 12, 900
#: Labels that have several values at one endpoint here.
DISTINGUISHING = ("outcome", "reason", "state", "command", "what", "le")


class Load:
    """Sends requests to a service, each over a connection of its own, and keeps their ids."""

    def __init__(self, served: Served) -> None:
        self.url, self.served = f"{served.url}/v1/completions", served
        self.store: RequestStore = store_of(served)

    def send(self, prefer: str = "", **fields: Any) -> httpx.Response:
        body = {"prompt": PROMPT, "ignore_eos": True, "temperature": 0, **fields}
        return httpx.post(self.url, json=body, headers={"Prefer": prefer} if prefer else {}, timeout=60)

    def submit(self, max_tokens: int) -> str:
        answer = self.send("respond-async", max_tokens=max_tokens, stream=True)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def cancel(self, request_id: str) -> None:
        assert httpx.delete(f"{self.served.url}/v1/requests/{request_id}", timeout=30).is_success

    def is_under_way(self, request_id: str) -> bool:
        """Whether a part of the request's answer is in its log."""
        record = self.store.fetch(request_id)
        return record is not None and record.seq > 0

    def ids(self) -> list[str]:
        """Every request that has a record."""
        start = len(redis_names.record(""))
        return [
            key.decode()[start:] for key in self.store.redis.scan_iter(redis_names.record("*"), count=1000)
        ]

    def num_delivered(self) -> int:
        """Tokens in all logs."""
        return sum(len(event.tokens) for each in self.ids() for event in self.store.read_log(each))

    def num_attempts(self) -> int:
        return sum(record.attempt for each in self.ids() if (record := self.store.fetch(each)))


def scraped(port: int) -> dict[str, float]:
    """Every sample of an endpoint, by name and the value of its distinguishing label."""
    found: dict[str, float] = {}
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            rest = [value for label, value in sample.labels.items() if label in DISTINGUISHING]
            found[" ".join([sample.name, *rest])] = sample.value
    return found


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def served(model_path: Path, tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("metrics")
    served = Served(folder, *SHAPE, *API, "--metrics-port", str(metrics_port))
    try:
        yield served.wait_ready()
    finally:
        served.process.kill() if served.end() else None


def test_metrics_equal_the_counted_truth(served: Served, metrics_port: int) -> None:
    load = Load(served)
    assert not load.ids(), "this counts from nothing, so it comes first"
    prompt_tokens = load.send(max_tokens=1).json()["usage"]["prompt_tokens"]

    # The slots and the queue are full: further requests are refused.
    holding = [load.submit(LONG) for _ in range(SLOTS)]
    wait_until(lambda: all(map(load.is_under_way, holding)), timeout=60)
    waiting = [load.submit(SHORT) for _ in range(LIMIT)]
    assert [load.send(max_tokens=1).status_code for _ in range(3)] == [429] * 3
    assert load.send(max_tokens=-1).status_code == 400
    load.cancel(waiting.pop())

    # The child dies under load, and its replacement goes on.
    steps = "inference_engine_work_total steps"
    before, before_on_api = scraped(metrics_port), wait_until(lambda: scraped(served.port)[steps])
    os.kill(wait_claimed(load.store, holding[0], 1), signal.SIGKILL)
    for each in holding:
        wait_claimed(load.store, each, 2)
    delivered = load.num_delivered()
    wait_until(lambda: load.num_delivered() > delivered, timeout=60)
    for each in holding:
        load.cancel(each)
    assert [final(served, each)["status"] for each in waiting] == ["succeeded"] * 3

    # Streams and whole answers side by side, a request that is too long, and one whose client goes away.
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: load.send(max_tokens=SHORT, stream=n % 2 == 0), range(4)))
    assert all(answer.is_success for answer in answers)
    assert load.send(max_tokens=SHORT, prompt="word " * 2000).status_code == 400
    with httpx.stream("POST", load.url, json={"prompt": PROMPT, "max_tokens": LONG, "stream": True}) as gone:
        next(line for line in gone.iter_lines() if line.startswith("data:"))

    outcomes = {"succeeded": 1 + 3 + 4, "cancelled": 1 + SLOTS + 1, "failed": 1, "expired": 0}
    total = sum(outcomes.values())

    def counted() -> dict[str, float]:
        found = scraped(served.port)
        return {name: found[f"inference_requests_total {name}"] for name in outcomes}

    wait_until(lambda: sum(counted().values()) == total, timeout=30)
    assert counted() == outcomes
    assert not load.store.redis.llen(redis_names.OUTCOMES)
    found, worker = scraped(served.port), scraped(metrics_port)
    # All but the request that was cancelled while it waited, and the one that was too long.
    assert found["inference_prompt_tokens_total"] == prompt_tokens * (total - 2)
    assert found["inference_generated_tokens_total"] == load.num_delivered()
    assert found["inference_request_attempts_total"] == load.num_attempts()
    assert load.num_attempts() == (total - 1) + SLOTS  # all but one ran, SLOTS of them twice
    assert found["inference_requests_requeued_total child_died"] == SLOTS
    assert found["inference_requests_refused_total queue_full"] == 3
    assert found["inference_requests_refused_total invalid_value"] == 1
    assert found["inference_e2e_request_latency_seconds_count"] == total
    assert found["inference_request_prefill_time_seconds_count"] == outcomes["succeeded"]

    assert worker["inference_children_restarted_total"] == 1
    assert worker["inference_engine_generated_tokens_total"] >= load.num_delivered()
    grown = [name for name in before if "_total" in name or "_count" in name or "_bucket" in name]
    assert grown
    assert not [name for name in grown if worker[name] < before[name]]

    # The next heartbeat tells the API; a quick machine gets here before it.
    wait_until(lambda: scraped(served.port)[steps] > before_on_api)

    # An API process dies: what it counted stays in the sum.
    gunicorn = served.part("gunicorn")
    first, _ = wait_until(lambda: children if len(children := gunicorn.children()) == 2 else None) or []
    first.kill()
    wait_until(lambda: first not in gunicorn.children() and len(gunicorn.children()) == 2, timeout=30)
    wait_until(lambda: ready(served), timeout=30)
    assert counted() == outcomes
    after = scraped(served.port)
    assert after["inference_generated_tokens_total"] == found["inference_generated_tokens_total"]


def wait_for(value: object, read: Callable[[], object]) -> None:
    """Wait until ``read`` returns ``value``; if it never does, show what it returns instead."""
    with suppress(AssertionError):
        wait_until(lambda: read() == value, timeout=30)
    assert read() == value


def ready(served: Served) -> bool:
    try:
        return httpx.get(f"{served.url}/readyz", timeout=10).is_success
    except httpx.TransportError:
        return False


needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not here (Debian: apt-get install prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="prometheus is not here (Debian: apt-get install prometheus)"
)


@needs_promtool
def test_promtool_finds_nothing_to_say(served: Served, metrics_port: int) -> None:
    for port in (served.port, metrics_port):
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
        assert "inference_" in text
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, ""), checked


def test_every_named_metric_is_there(served: Served, metrics_port: int) -> None:
    Load(served).send(max_tokens=4)
    names = {each.name for each in vars(metric_names).values() if isinstance(each, metric_names.Metric)}
    names |= {
        each.name
        for group in (metric_names.WORKER_COUNTERS, metric_names.WORKER_HISTOGRAMS)
        for each in group.values()
    }

    def missing() -> set[str]:
        pages = [httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in (served.port, metrics_port)]
        return names - set(re.findall(r"^# TYPE (\S+) ", "".join(pages), re.M))

    wait_until(lambda: not missing())


@pytest.fixture(scope="module")
def watching(
    served: Served, metrics_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that has seen some load come and go."""
    with prometheus(tmp_path_factory.mktemp("prometheus") / "run", served.port, metrics_port) as watching:
        load = Load(served)
        load.send(max_tokens=-1)
        lost = load.submit(LONG)
        os.kill(wait_claimed(load.store, lost, 1), signal.SIGKILL)
        wait_claimed(load.store, lost, 2)
        load.cancel(lost)
        load.send(max_tokens=SHORT)
        running = load.submit(LONG)  # for panels that show the present
        yield watching
        load.cancel(running)


#: Alerts that the faults above may cause: two children were killed within a minute.
CAUSED = {"InferenceChildrenDie"}
#: Panels that the load above may leave at 0.
QUIET = {"Preemptions", "Prompt lookup"}


@needs_prometheus
def test_every_panel_has_data(watching: Prometheus) -> None:
    assert len(panels()) > 20

    def silent() -> list[str]:
        """Queries without data, and panels that show only 0. A quantile of no samples is NaN."""
        found = []
        for panel in panels():
            answers = {target["expr"]: watching.query(target["expr"]) for target in panel["targets"]}
            found += [query for query, values in answers.items() if all(map(math.isnan, values))]
            if panel["title"] not in QUIET and not any(
                value > 0 for values in answers.values() for value in values
            ):
                found.append(panel["title"])
        return found

    wait_for([], silent)


@needs_prometheus
def test_every_alert_can_be_evaluated_and_none_fires_without_cause(watching: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        """The rules that have been evaluated; the time of the others is in the year 1."""
        [group] = watching.get("rules")["groups"]
        return [rule for rule in group["rules"] if rule["lastEvaluation"] > "1"]

    wait_for(14, lambda: len(rules()))
    assert [rule for rule in rules() if rule["health"] != "ok"] == []
    selectors = {
        selector
        for rule in rules()
        for selector in re.findall(r"\b(?:inference_\w+|up)(?:\{[^}]*\})?", rule["query"])
    }
    assert len(selectors) > 10
    wait_for([], lambda: [selector for selector in selectors if not watching.query(selector)])
    firing = {rule["name"] for rule in rules() if rule["state"] == "firing"}
    assert firing <= CAUSED
