"""Clients that keep what they receive, and go on at another API when their connection breaks."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

#: Seconds of silence after which a connection counts as dead; a stream sends a comment every two seconds.
SILENCE_S = 15.0
#: Seconds that a request may take in total, broken connections included.
PATIENCE_S = 180.0
#: Most seconds between two tries to connect.
PAUSE_S = 0.25
#: The statuses of an API that can't take a request now.
BUSY = (429, 503)
_BROKEN = (OSError, http.client.HTTPException, json.JSONDecodeError)


@dataclass
class Receipt:
    """All that a client received of one request.

    Attributes:
        pieces: number and text of every message with text.
        text: the whole text of an answer that was fetched; ``None`` for a stream.
        error: code of the error that ended the request, or ``gave up``.
        is_done: the answer has come to its proper end.
        has_left: the client went away on purpose.
        num_breaks: connections that broke or could not be made.
        num_refused: how often an API told the client to come back later.
    """

    body: dict[str, Any]
    id: str = ""
    pieces: list[tuple[int, str]] = field(default_factory=list)
    text: str | None = None
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    error: str | None = None
    is_done: bool = False
    has_left: bool = False
    num_breaks: int = 0
    num_refused: int = 0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to receive."""
        return self.is_done or self.has_left or self.error is not None

    @property
    def last_id(self) -> int:
        """Number of the last message with text."""
        return self.pieces[-1][0] if self.pieces else 0


class Client:
    """One request's client, for one thread; subclasses say how it reads.

    Args:
        urls: base URLs of the APIs; when one fails, the client tries the next one.
        body: the request's body.
        pick: chooses the first API.
    """

    path = "/v1/chat/completions"

    def __init__(self, urls: list[str], body: dict[str, Any], pick: random.Random) -> None:
        self._urls = urls
        self._turn = pick.randrange(len(urls))
        self._headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
        self._pause = threading.Event()
        self.receipt = Receipt(body)

    def run(self) -> Receipt:
        """Send the request and receive the whole answer, over as many connections as that takes."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.receipt.is_over:
            if time.monotonic() > deadline:
                self.receipt.error = "gave up"
                break
            try:
                self._exchange()
            except _BROKEN:
                self.receipt.num_breaks += 1
                self._next()
        return self.receipt

    def _exchange(self) -> None:
        raise NotImplementedError

    def _next(self) -> None:
        self._turn += 1
        self._pause.wait(PAUSE_S)

    def _connect(self) -> http.client.HTTPConnection:
        place = urlsplit(self._urls[self._turn % len(self._urls)])
        return http.client.HTTPConnection(place.hostname or "", place.port, timeout=SILENCE_S)

    def _post(self, connection: http.client.HTTPConnection, **headers: str) -> http.client.HTTPResponse:
        connection.request("POST", self.path, json.dumps(self.receipt.body), {**self._headers, **headers})
        return connection.getresponse()

    def _is_refused(self, response: http.client.HTTPResponse) -> bool:
        """Whether the client should come back later; other errors end the request."""
        if response.status < 300:
            return False
        error = json.loads(response.read())["error"]
        if response.status in BUSY and error["code"] != "queue_timeout":
            self.receipt.num_refused += 1
            self._next()
        else:
            self.receipt.error = str(error["code"])
        return True


class Streamer(Client):
    """Reads an answer as it comes, and resumes after the last message that it has.

    After ``leave_after`` messages with text the client goes away for good.
    """

    def __init__(
        self, urls: list[str], body: dict[str, Any], pick: random.Random, leave_after: int | None = None
    ) -> None:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        super().__init__(urls, {**body, **options}, pick)
        self._leave_after = leave_after
        if leave_after is not None:  # a request with a key goes on, since its client may come back
            del self._headers["Idempotency-Key"]

    def _exchange(self) -> None:
        connection = self._connect()
        try:
            # Close the response explicitly: its connection stays open as long as it does.
            with self._resume(connection) if self.receipt.id else self._post(connection) as response:
                if not self._is_refused(response):
                    self._read(response)
        finally:
            connection.close()

    def _resume(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        headers = {"Last-Event-ID": str(self.receipt.last_id)}
        connection.request("GET", f"/v1/requests/{self.receipt.id}/events", headers=headers)
        return connection.getresponse()

    def _read(self, response: http.client.HTTPResponse) -> None:
        for number, data in messages(response):
            if data == "[DONE]":
                self.receipt.is_done = True
                return
            self._take(number, json.loads(data))
            if self.receipt.is_over:
                return
            if self._leave_after is not None and len(self.receipt.pieces) >= self._leave_after:
                self.receipt.has_left = True
                return
        raise ConnectionError("the stream broke off")

    def _take(self, number: int, event: dict[str, Any]) -> None:
        receipt = self.receipt
        if "error" in event:
            # When the store is away the request has not ended: it goes on when the store is back.
            if event["error"]["code"] == "store_unavailable":
                raise ConnectionError(event["error"]["message"])
            receipt.error = str(event["error"]["code"])
            return
        assert receipt.id in ("", event["id"]), f"{event['id']} on the stream of {receipt.id}"
        receipt.id = event["id"]
        receipt.usage = event.get("usage") or receipt.usage
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                receipt.pieces.append((number, text))
            receipt.finish_reason = choice["finish_reason"] or receipt.finish_reason


def messages(response: http.client.HTTPResponse) -> Iterator[tuple[int, str]]:
    """Number and data of each message of a stream; an error message has no number and gets 0."""
    number = 0
    while line := response.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            yield number, value
            number = 0


class Poller(Client):
    """Sends an asynchronous request, and asks for its answer until it is there."""

    path = "/v1/completions"

    def _exchange(self) -> None:
        connection = self._connect()
        try:
            if not self.receipt.id:
                self._send(connection)
            while self.receipt.id and not self.receipt.is_over:
                self._ask(connection)
        finally:
            connection.close()

    def _send(self, connection: http.client.HTTPConnection) -> None:
        response = self._post(connection, Prefer="respond-async")
        if not self._is_refused(response):
            self.receipt.id = json.loads(response.read())["id"]

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        connection.request("GET", f"/v1/requests/{self.receipt.id}", headers={"Prefer": "wait=2"})
        response = connection.getresponse()
        if self._is_refused(response):
            raise ConnectionError("asked to come back later")
        self._take(json.loads(response.read()))

    def _take(self, told: dict[str, Any]) -> None:
        receipt, answer = self.receipt, told["response"]
        if told["error"] is not None:
            receipt.error = told["error"]["code"]
        elif answer is not None:
            [choice] = answer["choices"]
            receipt.text, receipt.finish_reason = choice["text"], choice["finish_reason"]
            receipt.usage, receipt.is_done = answer["usage"], True
