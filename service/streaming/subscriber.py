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

from redis.exceptions import RedisError

from service.streaming.listener import Mailbox
from tasks.contract import redis_names

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

#: Seconds of silence on the connection before a PING, and before it counts as dead.
PING_S = 3.0
DEAD_S = 6.0
#: Seconds that connecting and subscribing may take.
CONNECT_S = 3.0
#: Seconds between two wake-ups of all readers.
TICK_S = 0.5
#: Seconds of pause before connecting again, at first and at most. Each pause is twice the one before.
BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0


class Subscriber:
    """Receives the events of this process's requests.

    Args:
        redis: gives the address; the subscriber opens its own connection.
        on_freed: called with a model's name when a place in its queue becomes free.
        api_id: this process's unique name.
    """

    def __init__(
        self, redis: Redis, on_freed: Callable[[str], None] = lambda _: None, api_id: str | None = None
    ) -> None:
        self.channel = redis_names.events(api_id or uuid.uuid4().hex[:12])
        self._redis, self._on_freed = redis, on_freed
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
        """Ping a silent connection and close a dead one.

        Reads have no timeout, since that would cost a timer per token.
        """
        silent_s = time.monotonic() - self._heard
        if not self.is_ready or silent_s < PING_S:
            return
        if silent_s >= DEAD_S:
            self._connection.disconnect()
        else:
            self._connection.send_command("PING", check_health=False)

    def _connect(self) -> None:
        pool = self._redis.connection_pool
        # In RESP2 a message is a plain list, which is the cheapest to read.
        options = {**pool.connection_kwargs, "protocol": 2, "socket_timeout": None}
        connection = pool.connection_class(**options)
        self._connection = connection
        connection.connect()
        for channel in (self.channel, redis_names.FREED):
            connection.send_command("SUBSCRIBE", channel)
            connection.read_response(timeout=CONNECT_S)
        self._heard = time.monotonic()
        self._is_ready.set()
        self._mark_all_stale()

    def _receive(self) -> None:
        connection, own = self._connection, self.channel.encode()
        while not self._is_stopped.is_set():
            message = connection.read_response(disconnect_on_error=False)
            self._heard = time.monotonic()
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
        was_ready = self.is_ready
        self._is_ready.clear()
        if self._connection is not None:
            self._connection.disconnect()
        if was_ready and not self._is_stopped.is_set():
            log.warning("Lost the subscription, connecting again: %s", error)

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
