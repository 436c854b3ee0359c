"""Receives an API process's pub/sub messages over one connection and passes them on.

It doesn't use redis-py's loop, which silently subscribes again after a lost connection. This loop tells
every reader to read the log whenever events may have been missed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from service.streaming.listener import Mailbox
from tasks.contract import redis_names
from tasks.store.board import Board

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

WHO = "Receiving events"
#: Seconds of silence on the connection before a PING, and before it counts as dead.
PING_S = 3.0
DEAD_S = 6.0
#: Seconds of silence while it connects and subscribes, before the connection counts as dead.
CONNECT_S = 2.0
#: Seconds of silence after which messages may have been lost, though the connection lives.
GAP_S = 4.0
#: Seconds between two wake-ups of all readers.
TICK_S = 0.5
#: Seconds of pause before connecting again, at first and at most. Each pause is twice the one before.
BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0
_NO_RETRY = Retry(NoBackoff(), 0)


class Subscriber:
    """Receives the events of this process's requests.

    Args:
        redis: gives the address; the subscriber opens its own connection.
        on_freed: called with a model's name when a place in its queue becomes free.
        api_id: this process's unique name.
        board: where its troubles with Redis are noted.
    """

    def __init__(
        self,
        redis: Redis,
        on_freed: Callable[[str], None] = lambda _: None,
        api_id: str | None = None,
        board: Board | None = None,
    ) -> None:
        self.channel = redis_names.events(api_id or uuid.uuid4().hex[:12])
        self._redis, self._on_freed, self._board = redis, on_freed, board or Board()
        self._mailboxes: dict[str, tuple[Mailbox, ...]] = {}
        self._changing = threading.Lock()
        self._is_ready, self._is_stopped = threading.Event(), threading.Event()
        self._connection: Any = None
        self._heard = time.monotonic()

    @property
    def is_ready(self) -> bool:
        """Whether Redis has confirmed the subscription and the connection is alive."""
        return self._is_ready.is_set()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the subscription's confirmation; return whether it came."""
        return self._is_ready.wait(timeout_s)

    def start(self) -> None:
        """Start receiving and ticking, each in its own thread (a greenlet under gevent)."""
        for name, run in (("subscriber", self.run), ("ticks", self._tick)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._is_stopped.set()
        if (connection := self._connection) is not None:
            connection.disconnect()

    @contextmanager
    def mailbox(self, request_id: str) -> Iterator[Mailbox]:
        """A mailbox for the request's events; each reader of a request has its own."""
        box = Mailbox()
        with self._changing:
            self._mailboxes[request_id] = (*self._mailboxes.get(request_id, ()), box)
        try:
            yield box
        finally:
            self._remove(request_id, box)

    def run(self) -> None:
        """Receive until stopped; connect again, with growing pauses, whenever the connection is lost."""
        backoff = BACKOFF_S
        while not self._is_stopped.is_set():
            try:
                self._connect()
                backoff = BACKOFF_S
                self._receive()
            except (RedisError, OSError) as error:
                self._lost(error)
                self._is_stopped.wait(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_S)

    def _tick(self) -> None:
        while not self._is_stopped.wait(TICK_S):
            for box in self._all_mailboxes():
                box.tick()
            with suppress(RedisError, OSError):
                self._check_alive()

    def _check_alive(self) -> None:
        """Ping a silent connection and close a dead one, also one that gets no answer while it connects.

        Reads have no timeout, since that would cost a timer per token.
        """
        silent_s, connection = time.monotonic() - self._heard, self._connection
        if connection is None:
            return
        if silent_s >= (DEAD_S if self.is_ready else CONNECT_S):
            connection.disconnect()
        elif self.is_ready and silent_s >= PING_S:
            connection.send_command("PING", check_health=False)

    def _connect(self) -> None:
        pool = self._redis.connection_pool
        # In RESP2 a message is a plain list, which is the cheapest to read. Health is checked by the ticks.
        own = {"protocol": 2, "socket_timeout": None, "health_check_interval": 0}
        connection = pool.connection_class(**{**pool.connection_kwargs, **own, "retry": _NO_RETRY})
        self._connection, self._heard = connection, time.monotonic()
        connection.connect()
        for channel in (self.channel, redis_names.FREED):
            connection.send_command("SUBSCRIBE", channel)
            connection.read_response()
        self._heard = time.monotonic()
        self._is_ready.set()
        self._board.over(WHO)
        self._mark_all_stale()

    def _receive(self) -> None:
        connection, own = self._connection, self.channel.encode()
        while not self._is_stopped.is_set():
            message = connection.read_response(disconnect_on_error=False)
            before, self._heard = self._heard, time.monotonic()
            if self._heard - before > GAP_S:
                self._mark_all_stale()
            if message[0] == b"message":
                self._hand_on(message[2], is_own=message[1] == own)

    def _hand_on(self, payload: bytes, *, is_own: bool) -> None:
        if not is_own:
            self._on_freed(payload.decode())
            return
        mailboxes = self._mailboxes
        try:
            for request_id, event, *_ in json.loads(payload):
                for box in mailboxes.get(request_id, ()):
                    box.put(event)
        except (ValueError, TypeError, LookupError):  # the log has the events
            log.warning("What was published can't be read: %.200r", payload)
            self._mark_all_stale()

    def _lost(self, error: Exception) -> None:
        self._is_ready.clear()
        if self._connection is not None:
            self._connection.disconnect()
        if not self._is_stopped.is_set():
            self._board.note(WHO, error)

    def _remove(self, request_id: str, box: Mailbox) -> None:
        with self._changing:
            rest = tuple(other for other in self._mailboxes[request_id] if other is not box)
            if rest:
                self._mailboxes[request_id] = rest
            else:
                del self._mailboxes[request_id]

    def _mark_all_stale(self) -> None:
        for box in self._all_mailboxes():
            box.mark_stale()

    def _all_mailboxes(self) -> list[Mailbox]:
        with self._changing:
            return [box for boxes in self._mailboxes.values() for box in boxes]
