"""kombu's Redis transport, with a capped queue and leases.

It differs from kombu's in these points; what concerns a queue applies only to queues named ``inference.*``:

- a push is refused atomically above ``queue_limit`` (:class:`~tasks.queue.errors.QueueFull`);
- one script takes a message and leases it to its worker, by Redis's clock; soon after the worker's death it
  goes to another worker (``visibility_timeout`` is the lease; :mod:`tasks.worker.lease_renewal` renews it);
- a message of a newer format than this code knows stays in its place, for a worker that knows it;
- a message that can't be read is kept for people (``inference:dead_letters``), and the next is taken;
- an error reply of Redis ends nothing: taking messages pauses, and the worker's consumer connects again;
- a dropped connection puts no message back, since the children still run its task;
- a message that is put back goes to the head of the queue, with a new delivery tag, so that a worker which
  lost its lease can't acknowledge the next delivery.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, cast

import kombu
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps, loads
from redis import ConnectionError as RedisConnectionError
from redis import ReadOnlyError, Redis, RedisError, ResponseError, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from tasks.contract import versions
from tasks.contract.redis_names import DEAD_LETTERS, bell
from tasks.contract.tolerant import warn_once
from tasks.queue.errors import QueueFull
from tasks.queue.leases import QoS, request_id
from tasks.queue.patience import Patience
from tasks.store.board import Board
from tasks.store.connect import for_kind
from tasks.store.requests import script_source
from tasks.store.troubles import Kind, kind_of

if TYPE_CHECKING:
    from redis.commands.core import Script

logger = logging.getLogger(__name__)

#: Only these queues are capped.
QUEUE_PREFIX = "inference."
#: Pauses in seconds between attempts to connect again.
RECONNECT = {"interval_start": 0.1, "interval_step": 0.2, "interval_max": 1.0}

TRANSPORT_ALIASES.update(
    {
        "inference-redis": "tasks.queue.transport:Transport",
        "inference-rediss": "tasks.queue.transport:Transport",
        "inference-unix": "tasks.queue.transport:SocketTransport",
        "inference-sentinel": "tasks.queue.transport:SentinelTransport",
    }
)


class Connection(kombu.Connection):  # type: ignore[misc]
    """A connection that reconnects soon: kombu pauses for 2, 4, 6 … 30 s, but Redis restarts in one.

    Attributes:
        board: where its channels note their troubles.
    """

    board: Board | None = None

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, with kombu's arguments but shorter pauses."""
        return super().ensure_connection(*args, **{**RECONNECT, **kwargs})


class Scripts:
    """The transport's Lua scripts."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    @cached_property
    def push(self) -> Script:
        """Push a message below the cap."""
        return self._script("push")

    @cached_property
    def ring(self) -> Script:
        """Wake a worker to look into a queue."""
        return self._script("ring")

    @cached_property
    def take(self) -> Script:
        """Take the next message and lease it."""
        return self._script("take")

    @cached_property
    def reserve(self) -> Script:
        """Lease a message."""
        return self._script("reserve")

    @cached_property
    def overdue(self) -> Script:
        """Find the leases that ran out."""
        return self._script("overdue")

    @cached_property
    def bury(self) -> Script:
        """Keep a leased message that can't be read for people."""
        return self._script("bury")

    @cached_property
    def requeue(self) -> Script:
        """Put a leased message back."""
        return self._script("requeue")

    def _script(self, name: str) -> Script:
        return self._client.register_script(script_source(name))


# ---- channels and transports --------------------------------------------------------------------


class Channel(kombu_redis.Channel):  # type: ignore[misc]
    """A channel to one Redis."""

    from_transport_options = (*kombu_redis.Channel.from_transport_options, "queue_limit", "known_version")
    QoS = QoS
    #: A pipeline of plain pushes would bypass the cap.
    supports_batch_publish = False
    #: Requests that may wait in a queue; ``None``: any number.
    queue_limit: int | None = None
    #: The newest format of requests that this worker takes.
    known_version: int = versions.REQUEST

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # One client for all commands. It still works when the channel is closed: the tasks of its messages
        # go on, and at their end acknowledge by tag, which works over any connection.
        self._redis = self._create_client()
        # Only the next command notices that the server has closed a pooled connection: repeat it once.
        # Likewise after a failover: over a new connection, the same address may lead to the new master.
        self._redis.set_retry(Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError, ReadOnlyError)))
        self.board = getattr(self.connection.client, "board", None) or Board()
        self.patience = Patience(self.board, "Taking messages")
        self.scripts = Scripts(self._redis)
        #: When the channel was opened, in monotonic seconds.
        self.opened = monotonic()
        #: Tag of the message that was taken and leased last.
        self.taken = ""
        self._awaits_bell = False

    @property
    def do_restore(self) -> bool:
        """Whether closing puts unacknowledged messages back: only at shutdown, not on a lost connection."""
        from celery.worker import state

        return state.should_stop is not None or state.should_terminate is not None

    @contextmanager
    def conn_or_acquire(self, client: Redis | None = None) -> Iterator[Redis]:
        """A client, even when the channel is closed."""
        yield self._redis if client is None else client

    def place_of(self, message: dict[str, Any], exchange: str, routing_key: str) -> tuple[str, str]:
        """Names of the queue that a message is for, and of the list for its priority."""
        queue = self._lookup(exchange, routing_key)[0]
        return queue, self._q_for_pri(queue, self._get_message_priority(message))

    # ---- publish --------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if queue.startswith(QUEUE_PREFIX):
            self._push(queue, message)
        else:
            super()._put(queue, message, **kwargs)

    def _push(self, queue: str, message: dict[str, Any]) -> None:
        """Push a message of another publisher than :mod:`tasks.queue.submit`."""
        step = self.priority_steps.index(self.priority(self._get_message_priority(message))) + 1
        cap = (self.queue_limit or 0) if request_id(message) else 0
        reply = cast("int", self.scripts.push(keys=self._lists(queue), args=[cap, step, dumps(message)]))
        if reply < 0:
            raise QueueFull(-reply - 1, cap)

    def _lists(self, queue: str) -> list[str]:
        return [self._q_for_pri(queue, step) for step in self.priority_steps]

    # ---- consume --------------------------------------------------------------------------------
    #
    # kombu pops a message with BRPOP and notes it as reserved afterwards, so a message whose reply never
    # arrives is lost. Here BRPOP waits for a bell, and one script takes the message and leases it. A lost
    # bell costs a second, because a message is looked for whenever BRPOP returns, even without a bell.

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Begin to consume, first the messages that already wait."""
        result = super().basic_consume(queue, *args, **kwargs)
        if self._has_bells:
            try:
                self.scripts.ring(args=[queue])
            except ResponseError as error:
                self.patience.note(error)
        return result

    @property
    def _has_bells(self) -> bool:
        queues = self.active_queues
        return bool(queues) and all(queue.startswith(QUEUE_PREFIX) for queue in queues)

    def _brpop_start(self, timeout: float | None = None) -> None:
        self._awaits_bell = self._has_bells
        if not self._awaits_bell:
            super()._brpop_start(timeout)
            return
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        bells = [bell(queue) for queue in self.active_queues]
        connection.send_command("BRPOP", *bells, timeout or self.brpop_timeout)

    def close(self) -> None:
        """Close, and break off a wait for a bell; kombu would wait up to a second for the reply."""
        if self._in_poll and self._awaits_bell:
            self._in_poll.disconnect()
            self._in_poll = None
        super().close()

    def _brpop_read(self, **options: Any) -> bool:
        if not self._awaits_bell:
            return cast("bool", super()._brpop_read(**options))
        try:
            self.client.parse_response(self.client.connection, "BRPOP", **options)
        except ResponseError as error:
            if kind_of(error) is not Kind.UNBLOCKED:
                self._pause(error)
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        return self._take()

    def _pause(self, error: ResponseError) -> NoReturn:
        """Take nothing for a while, and over a new connection: there may be another master by then."""
        self.patience.note(error)
        self.client.connection.disconnect()
        raise Empty

    def _take(self) -> bool:
        queues = [] if self._closing else self._queue_cycle.consume(len(self.active_queues))
        for queue in queues:
            args = [self.unacked_index_key, self.unacked_key, self.known_version]
            try:
                reply = self.scripts.take(keys=self._lists(queue), args=args)
            except ResponseError as error:
                self._pause(error)
            if text := self._taken_of(reply, queue):
                self._queue_cycle.rotate(queue)
                self._hand_on(text, queue)
                return True
        self.patience.over()
        raise Empty

    def _taken_of(self, reply: Any, queue: str) -> bytes | None:
        """The message in the answer of ``take.lua``, if any; warns of those that were left or buried."""
        if not isinstance(reply, list):
            return cast("bytes | None", reply)
        text, passed, version, num_buried = reply
        if num_buried:
            logger.error("%d messages in %s can't be read; %s keeps them", num_buried, queue, DEAD_LETTERS)
        if passed:
            warn_once(
                f"Request {passed.decode()} has format version {version.decode()}, and this worker knows "
                f"versions up to {self.known_version}: it stays in the queue for a worker of a newer release"
            )
        return cast("bytes", text)

    def _hand_on(self, text: bytes, queue: str) -> None:
        """Have a leased message run; bury it if kombu or Celery can't read it."""
        self.patience.over()
        self.taken = ""
        try:
            message = loads(text)
            self.taken = message["properties"]["delivery_tag"]
            self.connection._deliver(message, queue)
        except (RedisError, OSError):
            raise
        except Exception as error:
            tag = self.taken or _tag_in(text)
            logger.exception("a message in %s can't be read; it is kept in %s", queue, DEAD_LETTERS)
            self.qos.bury(tag, queue, f"{type(error).__name__}: {error}")

    def _deliver_fanout_message(self, message: Any, exchange: str) -> bool:
        """Hand on a message for all workers, or drop it: anybody who may publish can send anything."""
        try:
            return cast("bool", super()._deliver_fanout_message(message, exchange))
        except (RedisError, OSError):
            raise
        except Exception:
            logger.exception("a message to all workers can't be read and is dropped")
            raise Empty from None


def _tag_in(text: bytes) -> str:
    """The delivery tag of a message that the scripts can read and Python can't."""
    found = re.search(rb'"delivery_tag"\s*:\s*"([^"]*)"', text)
    return found[1].decode(errors="replace") if found else ""


class SocketChannel(Channel):
    """A channel to a Redis on this machine; kombu's own form of such a URL would show the password."""

    from_transport_options = (*Channel.from_transport_options, "socket_path")
    connection_class = UnixDomainSocketConnection
    #: Path of Redis's Unix socket.
    socket_path: str

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params = for_kind("unix", super()._connparams(asynchronous))
        del params["host"], params["port"]
        return {**params, "path": self.socket_path}


class SentinelChannel(Channel, kombu_redis.SentinelChannel):  # type: ignore[misc]
    """A channel to the master that Sentinel names."""

    from_transport_options = (
        *kombu_redis.SentinelChannel.from_transport_options,
        *("queue_limit", "known_version", "sentinels"),
    )
    #: Host and port of every Sentinel.
    sentinels: list[tuple[str, int]]

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        # kombu reads the Sentinels from the URL's alternates. But it also switches to an alternate when a
        # connection fails, and would then use its stock transport instead of this one.
        params = self._connparams(asynchronous)
        named = {k: params[k] for k in ("username", "password") if params.get(k)}
        del params["host"], params["port"]
        manager = Sentinel(self.sentinels, **params)  # type: ignore[no-untyped-call]
        if asynchronous:
            self._async_sentinel_manager = manager
        else:
            self._sentinel_manager = manager
        client = manager.master_for(self.master_name, Redis, **named)  # type: ignore[no-untyped-call]
        return client.connection_pool


#: An error reply where a connection begins is no reason to end: Celery connects again after any of these.
_CONNECTION_ERRORS = (*kombu_redis.Transport.connection_errors, RedisError)


class Transport(kombu_redis.Transport):  # type: ignore[misc]
    """The transport to one Redis; the module's text describes it."""

    Channel = Channel
    supports_batch_publish = False
    connection_errors = _CONNECTION_ERRORS


class SocketTransport(Transport):
    """The transport through a Unix socket."""

    Channel = SocketChannel


class SentinelTransport(kombu_redis.SentinelTransport):  # type: ignore[misc]
    """The transport through Sentinel; the module's text describes it."""

    Channel = SentinelChannel
    supports_batch_publish = False
    connection_errors = _CONNECTION_ERRORS
