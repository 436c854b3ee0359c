"""Runs an API process's background loops: counting finished requests, housekeeping, pinging Redis."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from redis.backoff import ExponentialBackoff
from redis.exceptions import NoPermissionError, RedisError

from tasks.contract import redis_names
from tasks.contract.messages import Outcome
from tasks.contract.tolerant import warn_once
from tasks.contract.versions import UnsupportedVersionError
from tasks.store.board import Board
from tasks.store.requests import script_source

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

#: Whose trouble it is when Redis takes no request.
SUBMITTING = "Taking a request"
#: Seconds to wait for an outcome; must stay below the Redis client's socket timeout.
OUTCOME_WAIT_S = 2
#: Maximum outcomes per read after the first, and seconds between batches. Reading them one by one would
#: delay the requests that come after.
OUTCOME_BATCH = 100
OUTCOME_PAUSE_S = 0.2
#: Seconds before the next turn after one that failed, at first and at most.
RETRY_S, MAX_RETRY_S = 0.5, 2.0


class Loop:
    """Calls ``step`` again and again in a thread (a greenlet under gevent), whatever it raises.

    Args:
        name: for the log.
        step: does one turn.
        pause_s: seconds between two turns.
        board: where its troubles with Redis are noted.
    """

    def __init__(self, name: str, step: Callable[[], object], pause_s: float, board: Board) -> None:
        self._name, self._step, self._pause_s, self._board = name, step, pause_s, board
        self._backoff = ExponentialBackoff(cap=MAX_RETRY_S, base=RETRY_S)
        self._failures = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the loop."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Stop the loop after the current turn."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            pause_s = self._pause_s if self._turn() else self._backoff.compute(self._failures - 1)
            if pause_s:
                self._stopped.wait(pause_s)

    def _turn(self) -> bool:
        self._failures += 1
        try:
            self._step()
        except RedisError as error:
            self._board.note(self._name, error)
        except Exception:
            log.exception("%s failed", self._name)
        else:
            self._failures = 0
            self._board.over(self._name)
            return True
        return False


class Pinger:
    """Measures how long Redis takes to answer and passes the seconds to ``observe``.

    While Redis takes no requests, it also finds out when it does again: nobody may send one meanwhile.
    """

    def __init__(self, redis: Redis, observe: Callable[[float], None], board: Board) -> None:
        self._redis, self._observe, self._board = redis, observe, board
        self._probe = redis.register_script(script_source("probe"))

    def step(self) -> None:
        """Ping once. Raises ``redis.RedisError``."""
        started = time.perf_counter()
        self._redis.ping()
        self._observe(time.perf_counter() - started)
        if self._board.of(SUBMITTING) is not None:
            self._probe()
            self._board.over(SUBMITTING)


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
