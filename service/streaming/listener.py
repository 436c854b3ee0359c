"""Reads a request's events in order, without gaps or repeats.

Pub/sub is fast but may lose events; the request's log has them all. The subscriber puts events into a
:class:`Mailbox`, and a response reads them from a :class:`Listener`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from service.errors import ApiError, newer_format
from tasks.contract.messages import End, ErrorCode, Event, Failure, State
from tasks.contract.tolerant import UnreadableError
from tasks.contract.versions import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Maximum events in a mailbox. A reader that falls further behind reads the rest from the log.
MAILBOX_LIMIT = 512
#: Seconds of silence after which the log is read, at first and at most, since pub/sub may lose events
#: without a sign.
SILENCE_S = 2.0
MAX_SILENCE_S = 8.0
#: Seconds that Redis may be unreachable before a reader gives up.
PATIENCE_S = 60.0


class Mailbox:
    """Passes raw events from the subscriber to one response; bounded, never blocks the subscriber.

    Waiting has no timeout, since that would cost a timer per token. Instead, the subscriber wakes all readers
    together at intervals (:meth:`tick`).
    """

    def __init__(self, limit: int = MAILBOX_LIMIT) -> None:
        self._queue: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._limit = limit
        self._is_stale = False

    def put(self, event: dict[str, Any]) -> None:
        """Hand over one decoded event, or drop it when the reader is too far behind."""
        if self._queue.qsize() < self._limit:
            self._queue.put(event)
        else:
            self._is_stale = True

    def mark_stale(self) -> None:
        """Tell the reader to read the log, since it may have missed events."""
        self._is_stale = True
        self._queue.put(None)

    def tick(self) -> None:
        """Wake the reader so that it checks its clock and its client."""
        if self._queue.empty():
            self._queue.put(None)

    def take(self) -> list[dict[str, Any]]:
        """Wait for an event or a tick, then return all events in the mailbox; may be empty."""
        queue, found = self._queue, []
        item = queue.get()
        while True:
            if item is not None:
                found.append(item)
            if queue.empty():
                return found
            item = queue.get()

    def claim_stale(self) -> bool:
        """Whether events were dropped or may have been missed since the last call."""
        was, self._is_stale = self._is_stale, False
        return was


class Log(Protocol):
    """The part of :class:`tasks.store.requests.RequestStore` that a listener uses."""

    def read_log(self, request_id: str, after: int = 0) -> list[Event]:
        """The events numbered above ``after``, in order."""

    def watch(self, request_id: str, channel: str) -> State | None:
        """Have the request's events published on ``channel`` too; return its state, ``None`` when unknown."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a listener's events come from.

    Attributes:
        mailbox: where the subscriber puts the request's events.
        log: the request store.
        channel: this process's channel; each read of the log asks again for events on it.
        clock: returns monotonic seconds.
    """

    mailbox: Mailbox
    log: Log
    channel: str
    clock: Callable[[], float] = time.monotonic


class Listener:
    """Reads one request's events; not safe for two threads at once.

    Args:
        source: where the events come from.
        request_id: the request's id.
        after: number of the last event the reader has.
        is_behind: read the log first, since the request may have had events before the mailbox was made.
    """

    def __init__(self, source: Source, request_id: str, *, after: int = 0, is_behind: bool = False) -> None:
        self.request_id = request_id
        self.seq = after
        self.end: End | None = None
        self._source, self._mailbox, self._clock = source, source.mailbox, source.clock
        self._must_read = is_behind
        self._heard = after
        self._silence_s = SILENCE_S
        self._asked = self._clock()
        self._away_since: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the request's last event has come."""
        return self.end is not None

    def take(self) -> list[Event]:
        """Wait for an event or the subscriber's tick, then return the next events in order; may be empty.

        Raises:
            ApiError: 503 when Redis was away for :data:`PATIENCE_S`, or when an event has a newer format
                than this process knows.
        """
        try:
            return [] if self.is_over else self._next()
        except UnsupportedVersionError as error:
            raise newer_format(error) from None

    def _next(self) -> list[Event]:
        if self._must_read and self._away_since is None:
            return self._read()
        events = self._in_order(self._mailbox.take())
        if self._mailbox.claim_stale() or self._must_read or self._is_silent():
            events += self._read()
        return events

    def until_over(self, check: Callable[[], None]) -> Iterator[Event]:
        """Yield all events up to the end; call ``check``, which may raise, at least once per tick."""
        while not self.is_over:
            yield from self.take()
            check()

    def _in_order(self, raw: Iterable[dict[str, Any]]) -> list[Event]:
        events = []
        try:
            for event in map(Event.from_dict, raw):
                if event.seq == self.seq + 1:
                    events.append(self._accept(event))
                elif event.seq > self.seq:
                    self._must_read = True
                    break
        except UnreadableError:  # the log has the events
            self._must_read = True
        return events

    def _accept(self, event: Event) -> Event:
        self.seq = event.seq
        self.end = event.end
        return event

    def _is_silent(self) -> bool:
        now = self._clock()
        if self.seq != self._heard:
            self._heard, self._asked = self.seq, now
            self._silence_s = SILENCE_S
            return False
        return now - self._asked >= self._silence_s

    def _read(self) -> list[Event]:
        try:
            state = self._source.log.watch(self.request_id, self._source.channel)
            events = self._source.log.read_log(self.request_id, self.seq)
        except RedisError:
            self._must_read = True
            self._check_patience()
            return []
        return self._caught_up(state, events)

    def _caught_up(self, state: State | None, events: list[Event]) -> list[Event]:
        self._must_read, self._away_since = False, None
        self._silence_s = SILENCE_S if events else min(2 * self._silence_s, MAX_SILENCE_S)
        self._asked = self._clock()
        if state is None and not events:
            events = [self._lost()]
        found = [self._accept(event) for event in events if event.seq > self.seq]
        self._heard = self.seq
        return found

    def _check_patience(self) -> None:
        now = self._clock()
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > PATIENCE_S:
            raise ApiError(
                503,
                "store_unavailable",
                f"The request store (Redis) can't be reached. The request continues when it is back: "
                f"GET /v1/requests/{self.request_id}.",
                retry_after_s=5,
            )

    def _lost(self) -> Event:
        message = "The request's record has expired or was lost. Send the request again."
        return Event(self.seq + 1, end=End(State.FAILED, error=Failure(ErrorCode.INTERNAL, message)))
