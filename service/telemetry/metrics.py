"""The metrics at ``/metrics``: named like vLLM's, and correct across API processes.

The scripts that finish a request put its outcome on a list in Redis, which all API processes read. So each
request is counted once, whichever process streamed it or answered polls. The current state (waiting,
running, slots) is read from Redis when a client asks for ``/metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from service.errors import ApiError
from service.telemetry.pages import Share
from service.telemetry.shared_metrics import SharedCounter, SharedHistogram, Totals
from tasks.contract.messages import Outcome, State, Timings
from tasks.contract.status import Child
from tasks.store.board import Board
from tasks.store.registry import Registry
from tasks.store.requests import RequestStore
from tasks.store.troubles import Kind
from tasks.telemetry import metric_names as names
from tasks.telemetry.metric_names import Metric as Named

_READING = "Reading the live gauges"


#: What API processes count themselves.
COUNTED = (
    *(names.FIRST_TOKEN, names.BETWEEN_TOKENS, names.WHOLE, names.QUEUED, names.PREFILL, names.DECODE),
    *(names.PROMPT_TOKENS, names.REUSED_TOKENS, names.GENERATED_TOKENS, names.ATTEMPTS),
    *(names.REQUESTS, names.REFUSED, names.ROUND_TRIP),
)


class Metrics:
    """This process's counters and histograms; :meth:`render` adds those of all other API processes.

    Args:
        live: reads the current state whenever the metrics are rendered.
        share: where this process counts, and where all of them do.
    """

    def __init__(self, live: Collector, share: Share) -> None:
        self._live, self._totals = live, Totals(share.pages, COUNTED)
        counter, histogram = partial(SharedCounter, share.own), partial(SharedHistogram, share.own)
        self._first, self._between = histogram(names.FIRST_TOKEN), histogram(names.BETWEEN_TOKENS)
        self._whole, self._queued = histogram(names.WHOLE), histogram(names.QUEUED)
        self._prefill, self._decode = histogram(names.PREFILL), histogram(names.DECODE)
        self._trip = histogram(names.ROUND_TRIP)
        self._prompt, self._reused = counter(names.PROMPT_TOKENS), counter(names.REUSED_TOKENS)
        self._generated, self._attempts = counter(names.GENERATED_TOKENS), counter(names.ATTEMPTS)
        self._requests, self._refused = counter(names.REQUESTS), counter(names.REFUSED)
        self._of_a_model = (
            *(self._first, self._between, self._whole, self._queued, self._prefill, self._decode),
            *(self._prompt, self._reused, self._generated, self._attempts),
        )
        self._expected: set[str] = set()

    def expect(self, models: Iterable[str]) -> None:
        """Show every metric at 0 before its first event, so that Prometheus' rates count that event, too."""
        for reason in names.REFUSAL_REASONS:
            self._refused.show(reason)
        for model in set(models) - self._expected:
            self._expected.add(model)
            for state in filter(lambda state: state.is_final, State):
                self._requests.show(model, state.value)
            for metric in self._of_a_model:
                metric.show(model)

    def observe(self, outcome: Outcome) -> None:
        """Count one finished request."""
        model = outcome.model
        self._requests.add(1, model, outcome.state.value)
        self._whole.observe(outcome.e2e_ms / 1e3, model)
        if outcome.usage is not None:
            self._prompt.add(outcome.usage.prompt_tokens, model)
            self._generated.add(outcome.usage.completion_tokens, model)
        if outcome.timings is not None:
            self._observe_times(model, outcome.timings)
        self._between.observe_all([gap_ms / 1e3 for gap_ms in outcome.itl_ms], model)

    def _observe_times(self, model: str, timings: Timings) -> None:
        self._queued.observe(timings.queue_ms / 1e3, model)
        self._reused.add(timings.cache_n, model)
        self._attempts.add(timings.attempts, model)
        # A time is 0 when the request ended too early to have it.
        for histogram, spent_ms in (
            (self._first, timings.ttft_ms),
            (self._prefill, timings.prompt_ms),
            (self._decode, timings.predicted_ms),
        ):
            if spent_ms > 0:
                histogram.observe(spent_ms / 1e3, model)

    def refused(self, error: ApiError) -> None:
        """Count a request that was not accepted."""
        self._refused.add(1, error.code)

    def pinged(self, seconds: float) -> None:
        """Record how many seconds Redis took to answer a ping."""
        self._trip.observe(seconds, "ping")

    def render(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(_only(self._totals)) + generate_latest(_only(self._live))


def _only(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


class LiveGauges(Collector):
    """The current state from Redis; only ``inference_store_up 0`` when Redis doesn't answer.

    Args:
        store: gives the running requests.
        registry: gives the models, children and slots.
        waiting: returns how many requests wait for a model.
        limit: the cap, which is how many requests may wait for a model.
        board: this process's troubles with Redis.
    """

    def __init__(
        self,
        store: RequestStore,
        registry: Registry,
        waiting: Callable[[str], int],
        limit: int,
        board: Board,
    ) -> None:
        self._store, self._registry, self._waiting, self._limit = store, registry, waiting, limit
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """Read the gauges."""
        try:
            found = [*self._requests(), *self._requeued(), *self._children()]
        except RedisError as error:
            self._board.note(_READING, error)
            found = []
        else:
            self._board.over(_READING)
        kinds = self._board.kinds
        yield _gauge(names.STORE_TROUBLE, [([kind.value], kind in kinds) for kind in Kind])
        yield _gauge(names.STORE_UP, [([], bool(found))])
        yield from found

    def _requests(self) -> Iterator[Metric]:
        models = list(self._registry.models())
        yield _gauge(names.WAITING, [([model], self._waiting(model)) for model in models])
        yield _gauge(names.QUEUE_LIMIT, [([model], self._limit) for model in models])
        yield _gauge(names.RUNNING, [([], self._store.num_running())])
        yield _gauge(names.RESULT_BYTES, [([], self._store.result_bytes())])

    def _requeued(self) -> Iterator[Metric]:
        found = self._store.num_requeued()
        yield _counter(names.REQUEUED, [([why], found.get(why, 0)) for why in names.REQUEUE_REASONS])
        yield _counter(names.DEAD_LETTERS, [([], self._store.num_dead_letters())])

    def _children(self) -> Iterator[Metric]:
        children = list(_present(self._registry.children()).items())
        yield _gauge(names.SLOTS, [(list(name), child.slots) for name, child in children])
        yield _gauge(names.SLOTS_BUSY, [(list(name), child.busy) for name, child in children])
        yield _gauge(names.KERNELS, [([*name, child.kernels], 1) for name, child in children])
        work = [([*name, what], n) for name, child in children for what, n in child.work.items()]
        yield _counter(names.ENGINE_WORK, work)


def _present(children: Iterable[Child]) -> dict[tuple[str, str, str], Child]:
    """The children by model, worker and number.

    If a dead child is still registered beside its replacement, the replacement has the higher counts.
    """
    found: dict[tuple[str, str, str], Child] = {}
    for child in sorted(children, key=lambda child: sum(child.work.values())):
        found[child.model, child.worker, str(child.index)] = child
    return found


Samples = Iterable[tuple[Sequence[str], float]]


def _gauge(metric: Named, samples: Samples) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family


def _counter(metric: Named, samples: Samples) -> Metric:
    family = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family
