"""Writes a request's events as server-sent events.

A message's ``id`` is the number of the event it completes, so ``Last-Event-ID`` tells which events a client
has. The chunks that open and close an answer carry no new text and may be sent again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from service.errors import ApiError, from_failure
from service.streaming.answers import Answer
from service.streaming.client_gone import CHECK_S, ClientGoneError
from service.streaming.listener import Listener
from tasks.contract.messages import End, Event

#: Without a blank line: that would end an event, and after an ``id`` line OpenAI's clients would take it for
#: an event without data, and fail. The comment becomes part of the next event, where every reader drops it.
COMMENT = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # keeps nginx from buffering the chunks
}


def message(data: str, seq: int) -> bytes:
    """One message with an id."""
    return f"id: {seq}\ndata: {data}\n\n".encode("ascii")


def error_message(error: ApiError) -> bytes:
    """An error as a message, for when the HTTP status has already been sent."""
    return f"data: {json.dumps(error.body)}\n\n".encode("ascii")


class EventStream:
    """The body of a streamed response.

    Args:
        answer: writes the chunks.
        listener: reads the events.
        check: raises ``ClientGoneError`` when the client has gone.
        heartbeat_s: seconds of silence before a comment is sent.
        after: number of the last event the client has; its text is not sent again.
    """

    def __init__(
        self,
        answer: Answer,
        listener: Listener,
        check: Callable[[], None],
        heartbeat_s: float,
        after: int = 0,
    ) -> None:
        self._answer, self._listener, self._check = answer, listener, check
        self._heartbeat_s, self._after = heartbeat_s, after
        self._first: list[Event] = []
        self._is_open = after > 0
        self._checked = time.monotonic()
        #: Whether the stream was sent to its end, rather than stopped because its client had gone.
        self.is_complete = False

    def wait_first(self, timeout_s: float) -> None:
        """Wait for the first event, so that an early error can still be sent as an HTTP status.

        Raises:
            ApiError: the request ended with an error and no text.
            ClientGoneError: the client has gone.
        """
        deadline = time.monotonic() + timeout_s
        while not self._first and time.monotonic() < deadline:
            self._first = self._listener.take()
            self._check_sometimes()
        end = self._first[-1].end if self._first else None
        if end is not None and end.error is not None and not any(event.text for event in self._first):
            raise from_failure(end.error)

    def __iter__(self) -> Iterator[bytes]:
        """Yield everything from the first event to the end; stop silently when the client has gone."""
        try:
            if self._first:
                yield self._render(self._first)
            yield from self._rest()
        except ApiError as error:
            yield error_message(error)
        except ClientGoneError:
            return
        self.is_complete = True

    def _rest(self) -> Iterator[bytes]:
        listener, sent = self._listener, time.monotonic()
        while not listener.is_over:
            data = self._render(listener.take())
            now = self._check_sometimes()
            if not data and now - sent >= self._heartbeat_s:
                data = COMMENT
            if data:
                sent = now
                yield data

    def _check_sometimes(self) -> float:
        now = time.monotonic()
        if now - self._checked >= CHECK_S:
            self._checked = now
            self._check()
        return now

    def _render(self, events: list[Event]) -> bytes:
        return b"".join(part for event in events for part in self._messages(event))

    def _messages(self, event: Event) -> Iterator[bytes]:
        if not self._is_open:
            self._is_open = True
            if (opening := self._answer.opening) is not None:
                yield message(opening, event.seq - 1)
        if event.text and event.seq > self._after:
            yield message(self._answer.piece(event.text), event.seq)
        if event.end is not None:
            yield from self._ending(event.end, event.seq)

    def _ending(self, end: End, seq: int) -> Iterator[bytes]:
        if end.error is not None:
            yield error_message(from_failure(end.error))
            return
        for chunk in self._answer.closing(end):
            yield message(chunk, seq)
        yield DONE


def last_event_id(value: str | None) -> int:
    """Number of the last event a client has; 0 without an id or with one that this server didn't send."""
    with suppress(ValueError):
        if value and value.isascii() and value.isdigit():
            return int(value[:15])
    return 0
