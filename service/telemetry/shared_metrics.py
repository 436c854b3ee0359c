"""Counters and histograms whose numbers are in shared pages, and the collector that adds all pages up."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service.telemetry.pages import Page, Pages
from tasks.telemetry.metric_names import Metric as Named


class _Rows:
    """One metric's rows, by the values of its labels."""

    def __init__(self, page: Page, metric: Named, size: int) -> None:
        self._page, self._metric, self._size = page, metric, size
        self._rows: dict[tuple[str, ...], memoryview[float]] = {}

    def show(self, *labels: str) -> memoryview[float]:
        """The row of these labels, which shows zeros until something is counted."""
        row = self._rows.get(labels)
        if row is None:
            name = json.dumps([self._metric.name, *labels])
            row = self._rows[labels] = self._page.row(name, self._size)
        return row


class SharedCounter(_Rows):
    """A counter."""

    def __init__(self, page: Page, metric: Named) -> None:
        super().__init__(page, metric, 1)

    def add(self, number: float, *labels: str) -> None:
        """Count ``number`` more."""
        self.show(*labels)[0] += number


class SharedHistogram(_Rows):
    """A histogram: a number for each bucket, one for the values above all buckets, and the sum."""

    def __init__(self, page: Page, metric: Named) -> None:
        super().__init__(page, metric, len(metric.buckets) + 2)

    def observe(self, value: float, *labels: str) -> None:
        """Put a value into its bucket."""
        self.observe_all((value,), *labels)

    def observe_all(self, values: Sequence[float], *labels: str) -> None:
        """Put every value into its bucket."""
        row, bounds = self.show(*labels), self._metric.buckets
        for value in values:
            row[bisect_left(bounds, value)] += 1
        row[len(bounds) + 1] += sum(values)


class Totals(Collector):
    """What all API processes have counted of ``metrics``."""

    def __init__(self, pages: Pages, metrics: Sequence[Named]) -> None:
        self._pages, self._metrics = pages, metrics

    def collect(self) -> Iterator[Metric]:
        """Add the pages up."""
        found: dict[str, list[tuple[list[str], list[float]]]] = {}
        for key, numbers in sorted(self._pages.totals().items()):
            name, *labels = json.loads(key)
            found.setdefault(name, []).append((labels, numbers))
        for metric in self._metrics:
            build = _histogram if metric.buckets else _counter
            yield build(metric, found.get(metric.name, []))


Samples = Sequence[tuple[list[str], list[float]]]


def _counter(metric: Named, samples: Samples) -> Metric:
    family = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, [number] in samples:
        family.add_metric(labels, number)
    return family


def _histogram(metric: Named, samples: Samples) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
    bounds = [*(repr(float(bound)) for bound in metric.buckets), "+Inf"]
    for labels, (*numbers, total) in samples:
        family.add_metric(labels, list(zip(bounds, accumulate(numbers), strict=True)), total)
    return family
