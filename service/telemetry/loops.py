"""Runs an API process's background loops: counting finished requests, housekeeping, pinging Redis."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from redis.exceptions import NoPermissionError, RedisError

from tasks.contract import redis_names
from tasks.contract.messages import Outcome
from tasks.contract.tolerant import warn_once
from tasks.contract.versions import UnsupportedVersionError

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

#: Seconds to wait for an outcome; must stay below the Redis client's socket timeout.
OUTCOME_WAIT_S = 2
#: Maximum outcomes per read after the first, and seconds between batches. Reading them one by one would
#: delay the requests that come after.
OUTCOME_BATCH = 100
OUTCOME_PAUSE_S = 0.2
#: Seconds before the next turn after one that failed.
RETRY_S = 1.0


class Loop:
    """Calls ``step`` again and again in a thread (a greenlet under gevent), whatever it raises.

    Args:
        name: for the log.
        step: does one turn.
        pause_s: seconds between two turns.
    """

    def __init__(self, name: str, step: Callable[[], None], pause_s: float = 0.0) -> None:
        self._name, self._step, self._pause_s = name, step, pause_s
        self._stopped = threading.Event()
        self._is_failing = False

    def start(self) -> None:
        """Start the loop."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Stop the loop after the current turn."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            pause_s = self._pause_s if self._turn() else RETRY_S
            if pause_s:
                self._stopped.wait(pause_s)

    def _turn(self) -> bool:
        try:
            self._step()
        except RedisError as error:
            self._complain(error)
        except Exception:
            log.exception("%s failed", self._name)
        else:
            self._is_failing = False
            return True
        return False

    def _complain(self, error: RedisError) -> None:
        if not self._is_failing:
            log.warning("%s: Redis can't be reached, trying again: %s", self._name, error)
        self._is_failing = True


class Pinger:
    """Measures how long Redis takes to answer and passes the seconds to ``observe``."""

    def __init__(self, redis: Redis, observe: Callable[[float], None]) -> None:
        self._redis, self._observe = redis, observe

    def step(self) -> None:
        """Ping once. Raises ``redis.RedisError``."""
        started = time.perf_counter()
        self._redis.ping()
        self._observe(time.perf_counter() - started)


def warn_of_eviction(redis: Redis) -> None:
    """Warn, once, if Redis throws requests away when it is full. Raises ``redis.RedisError``."""
    try:
        told = redis.info("memory")
    except NoPermissionError:  # `doctor` says so
        return
    policy = str(told.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        warn_once(
            f"Redis throws accepted requests or their answers away when it is full (its maxmemory-policy is "
            f"{policy}): CONFIG SET maxmemory-policy noeviction, and the same in its configuration"
        )


class OutcomeReader:
    """Takes finished requests' outcomes off a list in Redis; only one API process gets each outcome."""

    def __init__(self, redis: Redis, observe: Callable[[Outcome], None]) -> None:
        self._redis, self._observe = redis, observe

    def step(self) -> None:
        """Wait for an outcome, then count all outcomes. Raises ``redis.RedisError``."""
        first = cast("list[bytes] | None", self._redis.brpop([redis_names.OUTCOMES], timeout=OUTCOME_WAIT_S))
        if first is not None:
            self._count(first[1])
            self.catch_up()

    def catch_up(self) -> None:
        """Count all outcomes, so that the metrics are up to date. Raises ``redis.RedisError``."""
        while found := cast("list[bytes] | None", self._redis.rpop(redis_names.OUTCOMES, OUTCOME_BATCH)):
            for raw in found:
                self._count(raw)

    def _count(self, raw: bytes) -> None:
        try:
            self._observe(Outcome.from_json(raw))
        except (ValueError, KeyError, TypeError, UnsupportedVersionError):
            log.exception("An outcome could not be read: %.200r", raw)
