"""The figures at ``/metrics``: named as vLLM's are, right across API processes.

What finished is told by the scripts that finish it, on a list in Redis that all API processes read: each
request is counted once, whoever streamed or polled it. What is (waiting, running, slots) is read from Redis
when asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from service.errors import ApiError
from tasks.messages import Outcome
from tasks.registry import Registry
from tasks.store import RequestStore

log = logging.getLogger(__name__)

# Buckets in seconds, for machines that make 5 tokens a second and for those that make 100.
_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BETWEEN = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1,
    5,
)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_QUEUE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """This process's counters and histograms; :meth:`render` adds up those of all API processes.

    Args:
        live: what is read at the moment of asking.
    """

    def __init__(self, live: Collector) -> None:
        self._live = live
        self._is_multiprocess = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        self._own = own = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["model"], buckets=buckets, registry=own)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=own)

        self._first = histogram(
            "inference_time_to_first_token_seconds", "From acceptance to the first token.", _FIRST
        )
        self._between = histogram(
            "inference_inter_token_latency_seconds", "Between two tokens of a request.", _BETWEEN
        )
        self._whole = histogram(
            "inference_e2e_request_latency_seconds", "From acceptance to the end.", _WHOLE
        )
        self._queued = histogram(
            "inference_request_queue_time_seconds", "From acceptance to the first claim.", _QUEUE
        )
        self._prompt = counter("inference_prompt_tokens_total", "Tokens of prompts.", "model")
        self._reused = counter("inference_reused_tokens_total", "Prompt tokens not computed again.", "model")
        self._generated = counter("inference_generated_tokens_total", "Tokens generated.", "model")
        self._requests = counter("inference_requests_total", "Finished requests.", "model", "outcome")
        self._refused = counter("inference_requests_refused_total", "Requests not accepted.", "reason")

    def observe(self, outcome: Outcome) -> None:
        """Count one finished request."""
        model = outcome.model
        self._requests.labels(model, outcome.state.value).inc()
        self._whole.labels(model).observe(outcome.e2e_ms / 1e3)
        if outcome.usage is not None:
            self._prompt.labels(model).inc(outcome.usage.prompt_tokens)
            self._generated.labels(model).inc(outcome.usage.completion_tokens)
        if outcome.timings is not None:
            self._queued.labels(model).observe(outcome.timings.queue_ms / 1e3)
            self._reused.labels(model).inc(outcome.timings.cache_n)
            if outcome.timings.ttft_ms > 0:
                self._first.labels(model).observe(outcome.timings.ttft_ms / 1e3)
        between = self._between.labels(model)
        for gap_ms in outcome.itl_ms:
            between.observe(gap_ms / 1e3)

    def refused(self, error: ApiError) -> None:
        """Count a request that was not accepted."""
        self._refused.labels(error.code).inc()

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        registry = self._own
        if self._is_multiprocess:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry) + generate_latest(_only(self._live))


def _only(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


class LiveGauges(Collector):
    """What Redis says now; only ``inference_store_up 0`` when it says nothing.

    Args:
        store: for the running requests.
        registry: for models, children and slots.
        waiting: requests that wait for a model.
        limit: requests that may wait for a model.
    """

    def __init__(
        self, store: RequestStore, registry: Registry, waiting: Callable[[str], int], limit: int
    ) -> None:
        self._store, self._registry, self._waiting, self._limit = store, registry, waiting, limit

    def collect(self) -> Iterator[Metric]:
        """Read them."""
        try:
            found = [*self._requests(), *self._slots(), *self._engines()]
        except RedisError as error:
            log.warning("No live gauges, Redis can't be reached: %s", error)
            found = []
        yield GaugeMetricFamily("inference_store_up", "Whether Redis answers.", value=float(bool(found)))
        yield from found

    def _requests(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("inference_requests_waiting", "Waiting requests.", labels=["model"])
        limit = GaugeMetricFamily("inference_queue_limit", "Requests that may wait.", labels=["model"])
        for model in self._registry.models():
            waiting.add_metric([model], self._waiting(model))
            limit.add_metric([model], self._limit)
        yield from (waiting, limit)
        running = self._store.num_running()
        yield GaugeMetricFamily("inference_requests_running", "Requests being generated.", value=running)

    def _slots(self) -> Iterator[Metric]:
        labels = ["model", "worker", "child"]
        slots = GaugeMetricFamily("inference_slots", "Requests a child can run at once.", labels=labels)
        busy = GaugeMetricFamily("inference_slots_busy", "Requests a child is running.", labels=labels)
        for child in self._registry.children():
            name = [child.model, child.worker, str(child.pid)]
            slots.add_metric(name, child.slots)
            busy.add_metric(name, child.busy)
        yield from (slots, busy)

    def _engines(self) -> Iterator[Metric]:
        labels = ["model", "worker", "child", "what"]
        work = CounterMetricFamily("inference_engine_work", "What a child's engine has done.", labels=labels)
        for child in self._registry.children():
            for what, count in child.work.items():
                work.add_metric([child.model, child.worker, str(child.pid), what], count)
        yield work
