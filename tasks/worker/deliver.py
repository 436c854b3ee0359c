"""Writes the engine's deltas to the requests' logs: one round trip for all requests of one or a few steps.

A stream's first token and its end are written at once. The tokens between are written no more often than a
screen is redrawn: in that time a lone fast stream makes two or three tokens, and one write of them costs as
much as a write of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep

from redis import RedisError
from redis.backoff import ExponentialBackoff

from tasks.engine.sequence import Delta, Ending
from tasks.store.board import Board
from tasks.worker.attempt import Attempt
from tasks.worker.attempt_store import Append, AttemptStore

_DELIVERING = "Delivering tokens"
#: A request that is not streamed is written after so many tokens or seconds, whichever comes first.
SELDOM_TOKENS = 64
SELDOM_S = 0.5
#: Seconds after which Redis is asked whether an attempt that wrote nothing meanwhile is still wanted. Waiting
#: for a slot, for another's prefix or for a turn in prefill, an attempt gives nothing to write, but it may be
#: over. Those that wrote nothing for half as long are asked for in the same round trip.
ASK_S = 0.05
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
        board: Board | None = None,
    ) -> None:
        """``interval_s``: least seconds between two writes, unless something is urgent.

        ``on_append`` is called with the seconds that each round trip to Redis took. ``board`` is where
        its troubles with Redis are noted.
        """
        self._store = store
        self._interval_s, self._written_at = interval_s, 0.0
        self._on_append, self._board = on_append, board or Board()
        self._stop: Callable[[str], None] = lambda _key: None
        self._steps: SimpleQueue[list[Delta] | None] = SimpleQueue()
        self._attempts: dict[str, Attempt] = {}
        self._pending: dict[str, _Pending] = {}
        self._backoff = ExponentialBackoff(cap=2.0, base=0.05)
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
        """Add an attempt, before its job is submitted; from now on Redis is asked whether it is wanted."""
        self._attempts[attempt.key] = attempt
        self._steps.put([])  # wakes the thread

    def remove(self, attempt: Attempt) -> None:
        """Forget an attempt whose job is not submitted."""
        self._attempts.pop(attempt.key, None)

    def _run(self) -> None:
        is_open = True
        while is_open:
            is_open = self._gather()
            self._flush(is_last=not is_open)
        for attempt in list(self._attempts.values()):
            attempt.stop(is_handed_back=True)

    def _gather(self) -> bool:
        """Take the engine's steps until something is to be written or asked; return whether more can come."""
        while True:
            try:
                deltas = self._steps.get(timeout=self._patience_s())
            except Empty:
                return True
            if deltas is None:
                return False
            self._collect(deltas)
            now = monotonic()
            if self._steps.empty() and (self._must_write(now) or self._must_ask(now)):
                return True

    def _patience_s(self) -> float | None:
        """How many seconds to wait for the next step, until waiting tokens are written or Redis is asked."""
        told_at = self._longest_silence()
        if told_at is None:
            return None
        until = told_at + ASK_S
        if self._pending and self._interval_s:
            until = min(until, self._written_at + MAX_INTERVALS * self._interval_s)
        return max(0.0, until - monotonic())

    def _must_write(self, now: float) -> bool:
        is_time = now - self._written_at >= self._interval_s
        return is_time or any(pending.is_urgent for pending in self._pending.values())

    def _must_ask(self, now: float) -> bool:
        told_at = self._longest_silence()
        return told_at is not None and now - told_at >= ASK_S

    def _longest_silence(self) -> float | None:
        """When Redis last said something of the attempt that it said nothing of for the longest time."""
        return min((attempt.told_at for attempt in list(self._attempts.values())), default=None)

    def _collect(self, deltas: Iterable[Delta]) -> None:
        now = monotonic()
        for delta in deltas:
            attempt = self._attempts.get(delta.key)
            if attempt is not None and not delta.is_empty:
                self._pending.setdefault(delta.key, _Pending(attempt, now)).add(delta)

    def _flush(self, *, is_last: bool = False) -> None:
        """Write the deltas that are due; now and then, ask for all other attempts whether to go on."""
        items = list(self._items(monotonic(), is_last=is_last))
        if not items:
            return
        verdicts = self._append([item for _, item in items])
        for (attempt, item), goes_on in zip(items, verdicts, strict=True):
            self._settle(attempt, item, goes_on=goes_on)

    def _items(self, now: float, *, is_last: bool) -> Iterator[tuple[Attempt, Append]]:
        is_writing, is_asking = is_last or self._must_write(now), self._must_ask(now)
        if is_writing and self._pending:
            self._written_at = now
        for attempt in list(self._attempts.values()):
            pending = self._pending.get(attempt.key)
            if pending is not None and (is_last or (is_writing and pending.is_due(now))):
                yield attempt, _news(pending)
            elif is_asking and now - attempt.told_at >= ASK_S / 2:
                yield attempt, Append(attempt.id, attempt.number, attempt.seq + 1, fence=attempt.fence)

    def _append(self, items: list[Append]) -> list[bool]:
        failures = 0
        while True:
            started = monotonic()
            try:
                verdicts = self._store.append(items)
            except RedisError as error:
                failures += 1
                # Steps go on arriving meanwhile; they are kept and delivered together afterwards.
                self._board.note(_DELIVERING, error)
                sleep(self._backoff.compute(failures))
            else:
                self._board.over(_DELIVERING)
                self._on_append(monotonic() - started)
                return verdicts

    def _settle(self, attempt: Attempt, item: Append, *, goes_on: bool) -> None:
        if not goes_on:
            self._attempts.pop(attempt.key, None)
            self._pending.pop(attempt.key, None)
            # In this order: a thread that submits the job afterwards sees that the attempt is over.
            attempt.stop()
            self._stop(attempt.key)
            return
        attempt.told_at = monotonic()
        if not item.is_silent:
            pending = self._pending.pop(attempt.key)
            attempt.seq, attempt.end, attempt.ending = item.seq, item.end, pending.ending
            attempt.proven.set()
            if item.end is not None:
                del self._attempts[attempt.key]
                attempt.stop()


def _news(pending: _Pending) -> Append:
    """What an attempt has generated."""
    attempt = pending.attempt
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
