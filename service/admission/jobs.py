"""Submits, follows, fetches and cancels requests; doesn't use Flask."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from redis.exceptions import MaxConnectionsError, RedisError

from service.admission.gate import BusyError
from service.admission.retry_times import RetryTimes
from service.admission.waiting_room import TooManyWaitingError, WaitingRoom
from service.errors import ApiError, overloaded, store_unavailable, unknown_request
from service.intake import idempotency
from service.streaming.listener import Listener, Mailbox, Source
from service.streaming.subscriber import Subscriber
from service.telemetry.loops import SUBMITTING
from tasks.contract.messages import Event, GenerateRequest, State
from tasks.queue.errors import QueueFull
from tasks.queue.submit import Admission, Key, KeyReusedError
from tasks.store.board import Board
from tasks.store.requests import Record, RequestStore

log = logging.getLogger(__name__)

#: Seconds a request waits for a lost subscription to come back before it is refused.
READY_S = 2.0
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Queue(Protocol):
    """The part of :class:`tasks.queue.submit.RequestQueue` that is used here."""

    def submit(
        self,
        request: GenerateRequest,
        watch: str,
        queue_timeout_s: float,
        key: Key | None = None,
        owner: str = "",
    ) -> Admission:
        """Accept the request or find it by its key; otherwise raise ``QueueFull`` or ``KeyReusedError``."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as a client sent it.

    Attributes:
        request: the typed request, with a new id.
        wait_s: seconds that the client is willing to wait for a place in a full queue.
        check: raises ``ClientGoneError`` once the client has gone.
        key: the request's idempotency key, if any. A client with a key may come back for the answer, so
            closing its connection cancels nothing.
        owner: whose request it is; empty: everybody's.
    """

    request: GenerateRequest
    wait_s: float
    check: Callable[[], None]
    key: Key | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Gives this process access to the requests of all API processes.

    Attributes:
        store: holds their records and logs.
        queue: takes new requests.
        subscriber: delivers their events.
        waiting_room: the requests that wait for a place in the queue.
        queue_timeout_s: seconds that a request may wait in the queue.
        retry_times: when refused clients may come back.
        board: where it is noted when Redis takes no request.
    """

    store: RequestStore
    queue: Queue
    subscriber: Subscriber
    waiting_room: WaitingRoom
    queue_timeout_s: float
    retry_times: RetryTimes
    board: Board = field(default_factory=Board)

    def submit(self, submission: Submission, *, is_watched: bool = False) -> Admission:
        """Accept a request or find it by its key; wait for a place if the client is willing to.

        Raises:
            ApiError: 429 when the queue is full or this process is busy, 422 when the key was used for
                another request, 503 when Redis is away.
            ClientGoneError: the client left while it waited.
            redis.RedisError: Redis failed; the request counts as not accepted.
        """
        request, is_known = submission.request, submission.key is not None
        attempt = partial(self._queue_once, submission, self.subscriber.channel if is_watched else "")
        try:
            return self.waiting_room.enter(
                request.model, attempt, submission.wait_s, submission.check, may_exist=is_known
            )
        except QueueFull as full:
            raise self._full(
                request.model, f"{full.waiting} requests wait, and the cap is {full.cap}"
            ) from None
        except TooManyWaitingError as full:
            raise self._full(
                request.model, f"{full.limit} more wait for a place, which is the most allowed"
            ) from None
        except BusyError:
            raise self._busy(request.model) from None
        except KeyReusedError:
            raise idempotency.reused() from None
        except MaxConnectionsError:
            raise  # the queue was not asked
        except RedisError as error:
            self.board.note(SUBMITTING, error)
            # The client is told that nothing was accepted, but the message may be in the queue. So cancel it,
            # unless there is a key: then the client finds it when it tries again.
            if submission.key is None:
                self.abandon(request.id)
            raise

    def _queue_once(self, submission: Submission, watch: str) -> Admission:
        request, key, owner = submission.request, submission.key, submission.owner
        admission = self.queue.submit(request, watch, self.queue_timeout_s, key, owner)
        self.board.over(SUBMITTING)
        return admission

    @contextmanager
    def started(self, submission: Submission) -> Iterator[tuple[Admission, Listener]]:
        """Accept a request and listen to it from its first event. Raises as :meth:`submit` does."""
        if not self.subscriber.wait_ready(READY_S):
            raise store_unavailable(self.board.text)
        own = submission.request.id
        with self.subscriber.mailbox(own) as mailbox:
            admission = self.submit(submission, is_watched=True)
            if admission.id == own:
                yield admission, Listener(self._source(mailbox), own)
                return
        with self.followed(admission.id) as listener:
            yield admission, listener

    @contextmanager
    def followed(self, request_id: str, after: int = 0) -> Iterator[Listener]:
        """Listen to an existing request, from the event that follows number ``after``."""
        with self.subscriber.mailbox(request_id) as mailbox:
            yield Listener(self._source(mailbox), request_id, after=after, is_behind=True)

    def fetch(self, request_id: str, viewer: str) -> Record:
        """The request's record. Raises ``ApiError`` 404 when there is none that ``viewer`` may see."""
        record = self.store.fetch(request_id) if _ID.fullmatch(request_id) else None
        if record is None or not record.is_visible_to(viewer):
            raise unknown_request(request_id[:80])
        return record

    def log(self, record: Record) -> list[Event]:
        """All events of a request that is over. Raises ``ApiError`` 404 when they are no longer kept."""
        events = self.store.read_log(record.id)
        if not events or events[-1].end is None:
            raise unknown_request(record.id)
        return events

    def cancel(self, request_id: str, viewer: str) -> State:
        """Cancel a request; return the state it was in. Raises ``ApiError`` 404 as :meth:`fetch` does."""
        state = self.store.cancel(request_id, viewer=viewer) if _ID.fullmatch(request_id) else None
        if state is None:
            raise unknown_request(request_id[:80])
        self.waiting_room.look_again()
        return state

    def abandon(self, request_id: str) -> None:
        """Cancel a request whose client has gone; a failure is only logged."""
        try:
            self.store.cancel(request_id, message="The client closed its connection.")
        except RedisError as error:
            log.warning("Could not cancel the abandoned request %s: %s", request_id, error)

    def _source(self, mailbox: Mailbox) -> Source:
        return Source(mailbox, self.store, self.subscriber.channel)

    def _full(self, model: str, why: str) -> ApiError:
        return ApiError(
            429,
            "queue_full",
            f"The queue is full: {why}. Retry later, or send Prefer: wait=N to wait for a place.",
            retry_after_s=self.retry_times.next_s(model, self.waiting_room.num_waiting),
        )

    def _busy(self, model: str) -> ApiError:
        if not self.subscriber.is_ready:
            return store_unavailable()
        return replace(overloaded(), retry_after_s=self.retry_times.next_s(model))
