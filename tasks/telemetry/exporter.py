"""A worker host's ``/metrics``: the parent serves what its children have counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from celery import bootsteps
from celery.worker import state
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from tasks.store.troubles import Kind
from tasks.telemetry.metric_names import (
    ROUND_TRIP,
    STORE_TROUBLE,
    WORKER_COUNTERS,
    WORKER_HISTOGRAMS,
    WORKER_SLOTS,
    Metric,
)
from tasks.telemetry.tally import Distribution, Tally

logger = logging.getLogger(__name__)

#: Seconds for which a connection may be silent; each takes a thread and an open file of the worker.
SILENCE_S = 10.0


class WorkerFigures(Collector):
    """A worker host's metrics at the moment when they are read.

    Args:
        model: name of the served model.
        total: adds up what the children have counted.
        slots: number of slots of all children.
        busy: counts the slots that are taken now.
        troubles: the kinds of what Redis refuses to the worker now.
    """

    def __init__(
        self,
        model: str,
        total: Callable[[], Tally],
        slots: int,
        busy: Callable[[], int],
        troubles: Callable[[], Collection[Kind]] = tuple,
    ) -> None:
        self._model, self._total, self._slots, self._busy = model, total, slots, busy
        self._troubles = troubles

    def collect(self) -> Iterator[Family]:
        """Read the metrics."""
        tally = self._total()
        for word, count in tally.counts(WORKER_COUNTERS).items():
            yield _counter(WORKER_COUNTERS[word], self._model, count)
        for word, metric in WORKER_HISTOGRAMS.items():
            label = word if metric is ROUND_TRIP else self._model
            yield _histogram(metric, label, tally.distribution(word))
        yield self._slot_gauge()
        yield self._trouble_gauge()

    def _trouble_gauge(self) -> Family:
        now = self._troubles()
        gauge = GaugeMetricFamily(STORE_TROUBLE.name, STORE_TROUBLE.text, labels=STORE_TROUBLE.labels)
        for kind in Kind:
            gauge.add_metric([kind.value], float(kind in now))
        return gauge

    def _slot_gauge(self) -> Family:
        busy = min(self._busy(), self._slots)
        slots = GaugeMetricFamily(WORKER_SLOTS.name, WORKER_SLOTS.text, labels=WORKER_SLOTS.labels)
        slots.add_metric([self._model, "busy"], busy)
        slots.add_metric([self._model, "free"], self._slots - busy)
        return slots


def _counter(metric: Metric, label: str, count: float) -> Family:
    family = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
    family.add_metric([label], count)
    return family


def _histogram(metric: Metric, label: str, found: Distribution) -> Family:
    family = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
    buckets = [(repr(float(bound)), number) for bound, number in found.cumulative]
    family.add_metric([label], [*buckets, ("+Inf", found.num)], found.total)
    return family


class Exporter(bootsteps.StartStopStep):  # type: ignore[misc]
    """Serves ``/metrics`` on ``--metrics-port`` for as long as the worker lives, drain included."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        settings = worker.app.settings
        if settings.metrics_port:
            # If the port is taken, the worker ends here, before it holds a request. Children that inherit the
            # socket don't keep the port: Celery has the system kill them when their parent dies.
            self._serve(worker, settings.metrics_host, settings.metrics_port)

    def _serve(self, worker: Any, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(_figures(worker))
        try:
            server, _ = start_http_server(port, host, registry)
        except OSError as error:
            raise SystemExit(
                f"inference-server worker: --metrics-port: can't listen on {host}, port {port} "
                f"({error.strerror}); give each worker of a host a port of its own, or 0 for none"
            ) from None
        handler: Any = server.RequestHandlerClass
        server.RequestHandlerClass = type("Handler", (handler,), {"timeout": SILENCE_S})
        logger.info("metrics on http://%s:%d/metrics", host, port)

    def start(self, worker: Any) -> None:
        """Do nothing: it has served since it was made."""

    def stop(self, worker: Any) -> None:
        """Do nothing: the pool drains after this."""


def _figures(worker: Any) -> WorkerFigures:
    app, slots = worker.app, int(worker.concurrency)
    return WorkerFigures(
        model=app.settings.served_name,
        total=lambda: app.tallies.total(slots),  # there are no more children than slots
        slots=slots,
        busy=lambda: len(state.active_requests),
        troubles=lambda: app.board.kinds,
    )
