"""Builds all parts of an API process in one place, and starts them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.admission.catalog import Catalog
from service.admission.jobs import Jobs
from service.admission.retry_times import RetryTimes
from service.admission.waiting_room import WaitingRoom
from service.settings import ApiSettings
from service.streaming.subscriber import Subscriber
from service.telemetry import tracing
from service.telemetry.loops import OUTCOME_PAUSE_S, Loop, OutcomeReader, Pinger, warn_of_eviction
from service.telemetry.metrics import LiveGauges, Metrics
from service.telemetry.pages import Share
from tasks.queue.submit import RequestQueue
from tasks.store import last_words
from tasks.store.connect import COMMAND_TIMEOUT_S, connect
from tasks.store.drain_rate import DrainRate
from tasks.store.janitor import Janitor
from tasks.store.last_words import LastWords
from tasks.store.registry import Registry
from tasks.store.requests import RequestStore
from tasks.store.status_reader import Refusals, StatusReader

log = logging.getLogger(__name__)

#: Maximum connections to Redis. Commands take well under a millisecond, so more would not help.
MAX_CONNECTIONS = 64
#: Seconds between two rounds of housekeeping.
HOUSEKEEPING_S = 1.0
#: Seconds between two measurements of how quickly Redis answers.
PING_S = 2.0
#: Seconds between two looks at what Redis does when it is full.
EVICTION_S = 60.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """An API process's parts; :attr:`draining` is set once the process takes no new requests."""

    settings: ApiSettings
    jobs: Jobs
    catalog: Catalog
    metrics: Metrics
    outcomes: OutcomeReader
    status: StatusReader
    refusals: Refusals
    loops: tuple[Loop, ...]
    read_last_words: Callable[[], list[LastWords]]
    draining: threading.Event = field(default_factory=threading.Event)

    @property
    def subscriber(self) -> Subscriber:
        """Delivers the requests' events."""
        return self.jobs.subscriber

    def start(self) -> None:
        """Start everything that runs beside the requests."""
        self.subscriber.start()
        for loop in self.loops:
            loop.start()

    def stop(self) -> None:
        """Stop what :meth:`start` started."""
        for loop in self.loops:
            loop.stop()
        self.subscriber.stop()


def build(settings: ApiSettings, share: Share | None = None) -> Runtime:
    """Build an API process's parts; nothing is connected or started yet.

    ``share``: where it counts; default: for itself alone.
    """
    redis = client(settings.redis_url)
    store, registry = RequestStore(redis, settings.result_ttl), Registry(redis)
    queue = RequestQueue(store, settings.queue_limit, tracing.message_headers(settings))
    waiting_room = WaitingRoom(settings.max_waiters)
    subscriber = Subscriber(redis, on_freed=waiting_room.wake)
    catalog = Catalog(registry, settings.served_name)
    rate = DrainRate(redis)
    retry_times = RetryTimes(lambda model: rate.interval_s(model, catalog.slots(model)), settings.api_workers)
    gauges = LiveGauges(store, registry, queue.waiting, settings.queue_limit)
    metrics = Metrics(gauges, share or Share.alone())
    outcomes, refusals = OutcomeReader(redis, metrics.observe), Refusals(redis)
    keep_house = _Housekeeping(metrics, catalog, store, Janitor(redis), refusals, settings.result_bytes).round
    return Runtime(
        settings=settings,
        jobs=Jobs(store, queue, subscriber, waiting_room, settings.queue_timeout, retry_times),
        catalog=catalog,
        metrics=metrics,
        outcomes=outcomes,
        status=StatusReader(redis, settings.queue_limit),
        refusals=refusals,
        loops=(
            Loop("housekeeping", keep_house, HOUSEKEEPING_S),
            Loop("ping", Pinger(redis, metrics.pinged).step, PING_S),
            Loop("eviction", partial(warn_of_eviction, redis), EVICTION_S),
            Loop("outcomes", outcomes.step, OUTCOME_PAUSE_S),
        ),
        read_last_words=partial(last_words.read, redis),
    )


@dataclass(frozen=True, slots=True)
class _Housekeeping:
    metrics: Metrics
    catalog: Catalog
    store: RequestStore
    janitor: Janitor
    refusals: Refusals
    result_bytes: int

    def round(self) -> None:
        self.metrics.expect(self.catalog.names)
        self.catalog.refresh()
        self.store.expire_due()
        self._forget_oldest()
        self.janitor.tidy()
        self.refusals.flush()

    def _forget_oldest(self) -> None:
        if num := self.store.forget_oldest(self.result_bytes):
            why = "all of them took more than --result-bytes"
            log.warning("%d finished requests are forgotten before their --result-ttl: %s", num, why)


def client(redis_url: str) -> Redis:
    """A Redis client with a bounded number of connections.

    It retries once without a pause, since a connection from the pool may have died unnoticed.
    """
    return connect(redis_url, MAX_CONNECTIONS, COMMAND_TIMEOUT_S, retry=Retry(NoBackoff(), 1))
