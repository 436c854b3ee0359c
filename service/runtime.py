"""Builds all parts of an API process in one place, and starts them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
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
from tasks.store.board import Board
from tasks.store.connect import COMMAND_TIMEOUT_S, connect
from tasks.store.drain_rate import DrainRate
from tasks.store.foreign_keys import foreign_keys
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
    board: Board
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
    board = Board(partial(foreign_keys, redis))
    store, registry = RequestStore(redis, settings.result_ttl), Registry(redis)
    queue = RequestQueue(store, settings.queue_limit, tracing.message_headers(settings))
    waiting_room = WaitingRoom(settings.max_waiters)
    subscriber = Subscriber(redis, on_freed=waiting_room.wake, board=board)
    catalog = Catalog(registry, settings.served_name)
    rate = DrainRate(redis)
    retry_times = RetryTimes(lambda model: rate.interval_s(model, catalog.slots(model)), settings.api_workers)
    gauges = LiveGauges(store, registry, queue.waiting, settings.queue_limit, board)
    metrics = Metrics(gauges, share or Share.alone())
    outcomes, refusals = OutcomeReader(redis, metrics.observe), Refusals(redis)
    tasks = _housekeeping(settings, metrics, catalog, store, refusals)
    return Runtime(
        settings=settings,
        jobs=Jobs(store, queue, subscriber, waiting_room, settings.queue_timeout, retry_times, board),
        catalog=catalog,
        metrics=metrics,
        outcomes=outcomes,
        status=StatusReader(redis, settings.queue_limit),
        refusals=refusals,
        # A loop for each, so that what Redis refuses to one of them stops no other.
        loops=(
            *(Loop(name, step, HOUSEKEEPING_S, board) for name, step in tasks),
            *_watching(redis, metrics, outcomes, board),
        ),
        board=board,
        read_last_words=partial(last_words.read, redis),
    )


def _watching(redis: Redis, metrics: Metrics, outcomes: OutcomeReader, board: Board) -> Iterator[Loop]:
    yield Loop("Asking Redis for an answer", Pinger(redis, metrics.pinged, board).step, PING_S, board)
    yield Loop("Asking for the eviction policy", partial(warn_of_eviction, redis), EVICTION_S, board)
    yield Loop("Counting finished requests", outcomes.step, OUTCOME_PAUSE_S, board)


def _housekeeping(
    settings: ApiSettings, metrics: Metrics, catalog: Catalog, store: RequestStore, refusals: Refusals
) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "Reading the models", partial(_look, metrics, catalog)
    yield "Ending requests that are due", store.expire_due
    yield "Bounding results", partial(_forget_oldest, store, settings.result_bytes)
    yield "Looking for lost requests", Janitor(store.redis, settings.result_ttl).tidy
    yield "Counting refused requests", refusals.flush


def _look(metrics: Metrics, catalog: Catalog) -> None:
    metrics.expect(catalog.names)
    catalog.refresh()


def _forget_oldest(store: RequestStore, result_bytes: int) -> None:
    if num := store.forget_oldest(result_bytes):
        why = "all of them took more than --result-bytes"
        log.warning("%d finished requests are forgotten before their --result-ttl: %s", num, why)


def client(redis_url: str) -> Redis:
    """A Redis client with a bounded number of connections.

    It retries once without a pause, since a connection from the pool may have died unnoticed.
    """
    return connect(redis_url, MAX_CONNECTIONS, COMMAND_TIMEOUT_S, retry=Retry(NoBackoff(), 1))
