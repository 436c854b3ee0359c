"""A request's events, in order, without a gap or a repeat, however they reach this process.

Pub/sub is the fast path and forgets; the request's log is the truth. :class:`Mailbox` is what the
subscriber hands events to, :class:`Listener` is what a response reads.
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
from tasks.contract.versions import FIELD, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Takes one raw event in the subscriber's greenlet; whether it did.
Offer = Callable[[dict[str, Any]], bool]
#: Takes the number and the text of an event that is no end; whether it did.
Sink = Callable[[int, str], bool]

#: Events a mailbox holds. A reader this far behind finds the rest in the log.
MAILBOX_LIMIT = 512
#: Seconds of silence after which the log is read, at first and at most: a safety net, for what pub/sub may
#: lose without a sign.
SILENCE_S = 2.0
MAX_SILENCE_S = 8.0
#: Seconds that Redis may be away before a reader gives up.
PATIENCE_S = 60.0


class Mailbox:
    """Raw events on their way from the subscriber to one response; bounded, never blocks the subscriber.

    Waiting has no timeout of its own, which would cost a timer per token: the subscriber wakes all readers
    together every now and then (:meth:`tick`). A reader that waits may be spared the waking, too: its
    ``offer`` is called instead. It must not switch greenlets.
    """

    def __init__(self, limit: int = MAILBOX_LIMIT) -> None:
        self._queue: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._limit = limit
        self._offer: Offer | None = None
        self._is_stale = False

    def put(self, event: dict[str, Any]) -> None:
        """Hand over one decoded event, or drop it when the reader is too far behind."""
        if self._offer is not None and self._offer(event):
            return
        if self._queue.qsize() < self._limit:
            self._queue.put(event)
        else:
            self._is_stale = True

    def mark_stale(self) -> None:
        """Have the reader look into the log: events may have passed by unheard."""
        self._is_stale = True
        self._queue.put(None)

    def tick(self) -> None:
        """Wake the reader, to look at its clock and its client."""
        if self._queue.empty():
            self._queue.put(None)

    def take(self, offer: Offer | None = None) -> list[dict[str, Any]]:
        """Everything there is, after waiting for the first event or tick; may be empty.

        While it waits, each event goes to ``offer``, and wakes it only if that doesn't take it.
        """
        queue, found = self._queue, []
        self._offer = offer
        try:
            item = queue.get()
        finally:
            self._offer = None
        while True:
            if item is not None:
                found.append(item)
            if queue.empty():
                return found
            item = queue.get()

    @property
    def is_awaited(self) -> bool:
        """Whether the reader waits and would be spared."""
        return self._offer is not None

    def claim_stale(self) -> bool:
        """Whether events were dropped or may have been missed since the last call."""
        was, self._is_stale = self._is_stale, False
        return was


class Log(Protocol):
    """What a listener needs of :class:`tasks.store.requests.RequestStore`."""

    def read_log(self, request_id: str, after: int = 0) -> list[Event]:
        """The events numbered above ``after``, in order."""

    def watch(self, request_id: str, channel: str) -> State | None:
        """Publish the request's events on ``channel`` too; its state, or ``None`` when unknown."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a listener's events come from.

    Attributes:
        mailbox: where the subscriber puts the request's events.
        log: the request store.
        channel: this process's channel, watched again whenever the log is read.
        clock: seconds, monotonic.
    """

    mailbox: Mailbox
    log: Log
    channel: str
    clock: Callable[[], float] = time.monotonic


class Listener:
    """Reads one request's events. Not for two threads at once.

    Args:
        source: where they come from.
        request_id: the request.
        after: number of the last event the reader has.
        is_behind: read the log first; for a request whose events may have begun before the mailbox was known.
    """

    def __init__(self, source: Source, request_id: str, *, after: int = 0, is_behind: bool = False) -> None:
        self.request_id = request_id
        self.seq = after
        self.end: End | None = None
        self._source, self._mailbox, self._clock = source, source.mailbox, source.clock
        self._must_read = is_behind
        self._sink: Sink | None = None
        self._heard = after
        self._silence_s = SILENCE_S
        self._asked = self._clock()
        self._away_since: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the request's last event has come."""
        return self.end is not None

    def pass_on(self, sink: Sink) -> None:
        """From now on, :meth:`take` waits on while ``sink`` takes what comes.

        ``sink`` is called in order, in the subscriber's greenlet, and must not switch to another.
        """
        self._sink = sink

    def take(self) -> list[Event]:
        """The next events in order, after waiting for the first or for the subscriber's tick; may be empty.

        Raises:
            ApiError: 503 when Redis has been away for :data:`PATIENCE_S`, or at an event of a newer format
                than this process knows.
        """
        try:
            return [] if self.is_over else self._next()
        except UnsupportedVersionError as error:
            raise newer_format(error) from None

    def _next(self) -> list[Event]:
        if self._must_read and self._away_since is None:
            return self._read()
        events = self._in_order(self._mailbox.take(self._offer if self._sink else None))
        if self._mailbox.claim_stale() or self._must_read or self._is_silent():
            events += self._read()
        return events

    def until_over(self, check: Callable[[], None]) -> Iterator[Event]:
        """All events up to the end; ``check`` is called in between, once a tick at least, and may raise."""
        while not self.is_over:
            yield from self.take()
            check()

    def _offer(self, raw: dict[str, Any]) -> bool:
        if FIELD in raw or "end" in raw or not {"s", "t"} <= raw.keys():  # the long way knows what to do
            return False
        seq, sink = raw["s"], self._sink
        if seq != self.seq + 1 or sink is None or not sink(seq, raw["t"]):
            return False
        self.seq = seq
        return True

    def _in_order(self, raw: Iterable[dict[str, Any]]) -> list[Event]:
        events = []
        try:
            for event in map(Event.from_dict, raw):
                if event.seq == self.seq + 1:
                    events.append(self._accept(event))
                elif event.seq > self.seq:
                    self._must_read = True
                    break
        except UnreadableError:  # whatever it was, the log has the events
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
                f"The request store (Redis) has been away too long; the request goes on when it is back: "
                f"GET /v1/requests/{self.request_id}.",
                retry_after_s=5,
            )

    def _lost(self) -> Event:
        message = "The request's record is gone: it was kept no longer, or the store lost it. Send it again."
        return Event(self.seq + 1, end=End(State.FAILED, error=Failure(ErrorCode.INTERNAL, message)))
