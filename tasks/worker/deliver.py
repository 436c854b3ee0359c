"""Writes the engine's deltas to the requests' logs: one round trip for all requests of one or a few steps.

A stream's first token and its end are written at once. The tokens between are written no more often than a
screen is redrawn: in that time a lone fast stream makes two or three tokens, and one write of them costs as
much as a write of one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep

from redis import RedisError
from redis.backoff import ExponentialBackoff

from tasks.engine.sequence import Delta, Ending
from tasks.worker.attempt import Attempt
from tasks.worker.attempt_store import Append, AttemptStore

logger = logging.getLogger(__name__)

#: A request that is not streamed is written after so many tokens or seconds, whichever comes first.
SELDOM_TOKENS = 64
SELDOM_S = 0.5
#: A token waits for the next step's tokens no longer than so many intervals between writes.
MAX_INTERVALS = 2


@dataclass(slots=True)
class _Pending:
    """What an attempt has generated and not yet delivered."""

    attempt: Attempt
    since: float
    text: str = ""
    tokens: tuple[int, ...] = ()
    ending: Ending | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.tokens += delta.tokens
        self.ending = delta.ending or self.ending

    @property
    def is_urgent(self) -> bool:
        """Whether to write at once: this has a stream's first token, or the end."""
        is_first = self.attempt.is_stream and self.attempt.seq == self.attempt.first_seq
        return self.ending is not None or (is_first and bool(self.tokens))

    def is_due(self, now: float) -> bool:
        return (
            self.attempt.is_stream
            or self.ending is not None
            or len(self.tokens) >= SELDOM_TOKENS
            or now - self.since >= SELDOM_S
        )


class Deliverer:
    """A thread between the engine and Redis, so that neither waits for the other.

    While Redis is away it keeps what the engine gives and tries again; nothing is dropped, since a
    request's tokens are bounded.
    """

    def __init__(
        self,
        store: AttemptStore,
        interval_s: float = 0.0,
        on_append: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """``interval_s``: least seconds between two writes, unless something is urgent.

        ``on_append`` is called with the seconds that each round trip to Redis took.
        """
        self._store = store
        self._interval_s, self._written_at = interval_s, 0.0
        self._on_append = on_append
        self._stop: Callable[[str], None] = lambda _key: None
        self._steps: SimpleQueue[list[Delta] | None] = SimpleQueue()
        self._attempts: dict[str, Attempt] = {}
        self._pending: dict[str, _Pending] = {}
        self._backoff = ExponentialBackoff(cap=1.0, base=0.05)
        self._thread = Thread(target=self._run, name="deliverer", daemon=True)

    def start(self, stop: Callable[[str], None]) -> None:
        """Begin to deliver; ``stop`` drops a job from the engine, by its key."""
        self._stop = stop
        self._thread.start()

    def put(self, deltas: list[Delta]) -> None:
        """Take one step's deltas from the engine."""
        self._steps.put(deltas)

    def close(self) -> None:
        """Deliver what is there, hand back the attempts that are not over, and end."""
        self._steps.put(None)
        self._thread.join()

    def add(self, attempt: Attempt) -> None:
        """Add an attempt, before its job is submitted."""
        self._attempts[attempt.key] = attempt

    def _run(self) -> None:
        is_open = True
        while is_open:
            is_open = self._gather()
            self._flush(is_last=not is_open)
        for attempt in list(self._attempts.values()):
            attempt.stop(is_handed_back=True)

    def _gather(self) -> bool:
        """Take the engine's steps until something must be written; return whether more can come."""
        while True:
            try:
                deltas = self._steps.get(timeout=self._patience_s())
            except Empty:
                return True
            if deltas is None:
                return False
            self._collect(deltas)
            if self._steps.empty() and self._is_due():
                return True

    def _patience_s(self) -> float | None:
        """How many seconds to wait for the next step before waiting tokens are written without it."""
        if not (self._pending and self._interval_s):
            return None
        return max(0.0, self._written_at + MAX_INTERVALS * self._interval_s - monotonic())

    def _is_due(self) -> bool:
        is_time = monotonic() - self._written_at >= self._interval_s
        return is_time or any(pending.is_urgent for pending in self._pending.values())

    def _collect(self, deltas: Iterable[Delta]) -> None:
        now = monotonic()
        for delta in deltas:
            attempt = self._attempts.get(delta.key)
            if attempt is not None:
                self._pending.setdefault(delta.key, _Pending(attempt, now)).add(delta)

    def _flush(self, *, is_last: bool = False) -> None:
        """Write the deltas that are due, and ask for the other attempts whether to go on."""
        now = self._written_at = monotonic()
        batch = list(self._pending.values())
        items = [_item(pending, is_due=is_last or pending.is_due(now)) for pending in batch]
        if not items:
            return
        verdicts = self._append(items)
        for pending, item, goes_on in zip(batch, items, verdicts, strict=True):
            self._settle(pending, item, goes_on=goes_on)

    def _append(self, items: list[Append]) -> list[bool]:
        failures = 0
        while True:
            started = monotonic()
            try:
                verdicts = self._store.append(items)
            except RedisError as error:
                failures += 1
                if failures == 1:
                    logger.warning("Redis is away (%s); what is generated is kept until it is back", error)
                # Steps go on arriving meanwhile and are delivered together afterwards.
                sleep(self._backoff.compute(failures))
            else:
                self._on_append(monotonic() - started)
                return verdicts

    def _settle(self, pending: _Pending, item: Append, *, goes_on: bool) -> None:
        attempt = pending.attempt
        if not item.is_silent:
            attempt.seq = item.seq
            attempt.proven.set()
        if not goes_on:
            self._stop(attempt.key)
        if goes_on:
            attempt.end, attempt.ending = item.end, pending.ending
        if not goes_on or item.end is not None:
            del self._attempts[attempt.key]
            attempt.stop()
        if not goes_on or not item.is_silent or not pending.tokens:
            del self._pending[attempt.key]


def _item(pending: _Pending, *, is_due: bool) -> Append:
    attempt = pending.attempt
    if not is_due:
        return Append(attempt.id, attempt.number, attempt.seq + 1, fence=attempt.fence)
    return Append(
        attempt.id,
        attempt.number,
        attempt.seq + 1,
        text=pending.text,
        tokens=pending.tokens,
        prompt_tokens=attempt.prompt_tokens if attempt.seq == attempt.first_seq else None,
        end=None if pending.ending is None else attempt.finished(pending.ending),
        itl_ms=() if pending.ending is None else pending.ending.gaps_ms,
        fence=attempt.fence,
    )
