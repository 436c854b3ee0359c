"""kombu's Redis transport, with a capped queue and leases.

What it changes, for queues named ``inference.*`` only where a queue is concerned:

- a push is refused atomically above ``queue_limit`` (:class:`QueueFull`), and writes the request's record in
  the same step, once per request;
- a message is taken and leased to its worker in one step, by Redis's clock, and runs elsewhere soon after
  the worker's death (``visibility_timeout`` is the lease; :mod:`tasks.steps` renews it);
- a dropped connection puts nothing back, since the children still run it;
- what is put back goes to the head of the line, with a new delivery tag, so that a worker which lost its
  lease can't acknowledge the next delivery.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import kombu
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid
from redis import BlockingConnectionPool, Redis
from redis import ConnectionError as RedisConnectionError
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from tasks.keys import LEASES, PREFIX, UNACKED
from tasks.store import Submission, script_source

if TYPE_CHECKING:
    from redis.commands.core import Script

#: Only these queues are capped.
QUEUE_PREFIX = "inference."
#: Lists with a token when a queue may have messages.
BELL_PREFIX = PREFIX + "bell:"
#: Overdue leases looked at in one sweep.
SWEEP_BATCH = 100
#: Pauses in seconds between attempts to connect again.
RECONNECT = {"interval_start": 0.1, "interval_step": 0.2, "interval_max": 1.0}
#: How much of a death a run counts as whose child died, or whose lease ran out (:meth:`RequestStore.deaths`).
DEATH, LOST_LEASE = 1.0, 0.25
#: Message header, never sent, of what a message is to be pushed with: a :class:`tasks.store.Submission`.
SUBMISSION = "submission"
#: Where kombu keeps what is reserved; names of our own, so that another Celery application in the same
#: database never meets it.
UNACKED_OPTIONS = {
    "unacked_key": UNACKED,
    "unacked_index_key": LEASES,
    "unacked_mutex_key": PREFIX + "unacked_mutex",
}

TRANSPORT_ALIASES.update(
    {
        "inference-redis": "tasks.transport:Transport",
        "inference-rediss": "tasks.transport:Transport",
        "inference-sentinel": "tasks.transport:SentinelTransport",
    }
)


class QueueFull(Exception):  # noqa: N818 - the name that the standard library uses for this
    """The queue holds as many waiting requests as it may; try again later.

    Deliberately no ``OSError``: those are retried by the publisher.

    Attributes:
        waiting: requests waiting when it was refused.
        limit: requests that may wait.
    """

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"The queue is full: {waiting} requests wait and {limit} may; retry later.")
        self.waiting = waiting
        self.limit = limit


class Connection(kombu.Connection):  # type: ignore[misc]
    """A connection that is tried again soon: kombu pauses for 2, 4, 6 … 30 s, and Redis restarts in one."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, with kombu's arguments but other pauses."""
        return super().ensure_connection(*args, **{**RECONNECT, **kwargs})


# ---- where Redis is -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broker:
    """What kombu needs to reach the Redis that ``redis_url`` names: a URL of ours and transport options."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, redis_url: str) -> Broker:
        """Translate a ``redis://``, ``rediss://`` or ``sentinel://`` URL. Raises ``ValueError`` on others."""
        scheme = _scheme(redis_url)
        if scheme == "sentinel":
            place = _SentinelPlace.parse(redis_url)
            options = {"sentinels": place.hosts, "master_name": place.master}
            return cls(f"inference-sentinel{place.first.removeprefix('sentinel')}", options)
        if scheme == "rediss":
            return cls("inference-" + _verified(redis_url))
        return cls("inference-" + redis_url)


def connect(redis_url: str, max_connections: int = 32, **options: Any) -> Redis:
    """A client of the Redis that ``redis_url`` names; threads and greenlets wait for a free connection.

    Args:
        redis_url: ``redis://``, ``rediss://`` or ``sentinel://``, as in the settings.
        max_connections: commands under way at the same time.
        options: redis-py's, for example ``socket_timeout`` in seconds.
    """
    if _scheme(redis_url) == "sentinel":
        return _SentinelPlace.parse(redis_url).connect(**options)
    pool = BlockingConnectionPool.from_url(redis_url, max_connections=max_connections, **options)
    return Redis(connection_pool=pool)


def _scheme(redis_url: str) -> str:
    scheme = urlsplit(redis_url).scheme
    if scheme not in ("redis", "rediss", "sentinel"):
        raise ValueError(f"redis_url must begin with redis://, rediss:// or sentinel://, not {scheme!r}")
    return scheme


def _verified(url: str) -> str:
    """Ask for the certificate to be verified unless the URL says otherwise; kombu's default is not to."""
    parts = urlsplit(url)
    query = {"ssl_cert_reqs": "required", **dict(parse_qsl(parts.query))}
    return parts._replace(query=urlencode(query)).geturl()


@dataclass(frozen=True, slots=True)
class _SentinelPlace:
    """``sentinel://[user:password@]host:port[;sentinel://host:port …]/db?master_name=mymaster``."""

    first: str
    hosts: list[tuple[str, int]]
    master: str
    db: int
    credentials: dict[str, str]

    @classmethod
    def parse(cls, url: str) -> _SentinelPlace:
        parts = [urlsplit(each) for each in url.split(";")]
        last = parts[-1]
        named = {"username": parts[0].username, "password": parts[0].password}
        return cls(
            first=parts[0]._replace(path=last.path, query="").geturl(),
            hosts=[(part.hostname or "127.0.0.1", part.port or 26379) for part in parts],
            master=dict(parse_qsl(last.query)).get("master_name", "mymaster"),
            db=int(last.path.strip("/") or 0),
            credentials={k: v for k, v in named.items() if v},
        )

    def connect(self, **options: Any) -> Redis:
        manager = Sentinel(self.hosts, **self.credentials, **options)  # type: ignore[no-untyped-call]
        # Its pool never waits, it raises; so it may grow.
        client = manager.master_for(self.master, db=self.db, max_connections=10_000)  # type: ignore[no-untyped-call]
        return cast("Redis", client)


# ---- what is reserved ---------------------------------------------------------------------------


class QoS(kombu_redis.QoS):  # type: ignore[misc]
    """Reserved messages, leased by Redis's clock so that hosts whose clocks differ agree."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a message that was just received, and lease it unless that was done as it was taken."""
        if delivery_tag != self.channel.taken:
            self._reserve(message, delivery_tag)
        # Not kombu's Redis QoS, which would write its own clock's time.
        virtual.QoS.append(self, message, delivery_tag)

    def _reserve(self, message: Any, delivery_tag: str) -> None:
        info = message.delivery_info
        entry = dumps([message._raw, info["exchange"], info["routing_key"]])
        with self.channel.conn_or_acquire() as client:
            self.channel.scripts.reserve(args=[*self._names, delivery_tag, entry], client=client)

    def restore_by_tag(self, tag: Any, client: Redis | None = None, leftmost: bool = False) -> None:
        """Put a message back at the head of its line, whichever end was asked for."""
        # What a worker hands back when it ends is no fault of the request.
        charge = 0.0 if self.channel.do_restore else DEATH
        with self.channel.conn_or_acquire(client) as redis:
            self._requeue(redis, tag, charge)

    def restore_unacked(self, client: Redis | None = None) -> None:
        """Put everything back, in the order it came."""
        with self.channel.conn_or_acquire(client) as redis:
            for tag in reversed(list(self._delivered)):
                self._requeue(redis, tag)
        self._delivered.clear()

    def restore_visible(self, start: int = 0, num: int | None = None, interval: int = 1) -> None:
        """Put back what is leased to workers that stopped renewing. No lock: each is taken atomically."""
        lease = self.visibility_timeout
        # After Redis was away all leases look overdue; whoever lives renews his before long.
        if monotonic() - self.channel.opened < lease / 2:
            return
        with self.channel.conn_or_acquire() as client:
            args = [self.unacked_index_key, lease, num or SWEEP_BATCH]
            for tag in self.channel.scripts.overdue(args=args, client=client):
                self._requeue(client, tag.decode(), LOST_LEASE, lease)

    def _requeue(self, client: Redis, tag: str, charge: float = 0.0, lease: float | str = "") -> None:
        entry = cast("bytes | None", client.hget(self.unacked_key, tag))
        if entry is None:
            client.zrem(self.unacked_index_key, tag)
            return
        raw, exchange, routing_key = loads(entry)
        queue, where = self.channel.place_of(raw, exchange, routing_key)
        again = _redelivered(raw)
        args = [*self._names, tag, lease, where, dumps(again), _tag(again), _request_id(raw), queue, charge]
        self.channel.scripts.requeue(args=args, client=client)

    @property
    def _names(self) -> tuple[str, str]:
        return self.unacked_index_key, self.unacked_key


def _request_id(message: dict[str, Any]) -> str:
    return cast("str", message.get("headers", {}).get("id") or "")


def _tag(message: dict[str, Any]) -> str:
    return cast("str", message["properties"]["delivery_tag"])


def _redelivered(raw: dict[str, Any]) -> dict[str, Any]:
    """The message as it is to be delivered again."""
    properties = raw["properties"]
    info = {**properties.get("delivery_info", {}), "redelivered": True}
    # A new tag: a worker that lost its lease may still acknowledge the old one.
    properties = {**properties, "delivery_info": info, "delivery_tag": uuid()}
    return {**raw, "properties": properties, "headers": {**raw.get("headers", {}), "redelivered": True}}


class Scripts:
    """The transport's Lua scripts."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    @cached_property
    def submit(self) -> Script:
        """Accept a request below the cap."""
        return self._script("submit")

    @cached_property
    def push(self) -> Script:
        """Push another message below the cap."""
        return self._script("push")

    @cached_property
    def ring(self) -> Script:
        """Have a worker look into a queue."""
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
    def requeue(self) -> Script:
        """Put a leased message back."""
        return self._script("requeue")

    def _script(self, name: str) -> Script:
        return self._client.register_script(script_source(name))


# ---- channels and transports --------------------------------------------------------------------


class Channel(kombu_redis.Channel):  # type: ignore[misc]
    """A channel to one Redis."""

    from_transport_options = (*kombu_redis.Channel.from_transport_options, "queue_limit")
    QoS = QoS
    #: A pipeline of plain pushes would bypass the cap.
    supports_batch_publish = False
    #: Requests that may wait in a queue; ``None``: any number.
    queue_limit: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # One client for all commands, which also serves when the channel is closed: its messages' tasks go
        # on, and end with an acknowledgement by tag, which any connection can carry.
        self._redis = self._create_client()
        # A pooled connection that the server has closed is found out by the next command.
        self._redis.set_retry(Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)))
        self.scripts = Scripts(self._redis)
        #: By the monotonic clock.
        self.opened = monotonic()
        #: Tag of the message that was taken and leased last.
        self.taken = ""
        self._awaits_bell = False

    @property
    def do_restore(self) -> bool:
        """Whether closing puts back what is not acknowledged: at shutdown only, not on a lost connection."""
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
        headers = dict(message.get("headers", {}))
        submission: Submission | None = headers.pop(SUBMISSION, None)
        message = {**message, "headers": headers}
        lists, limit = self._lists(queue), self.queue_limit or 0
        step = self.priority_steps.index(self.priority(self._get_message_priority(message))) + 1
        if submission is None:
            limit = limit if _request_id(message) else 0
            reply = cast("int", self.scripts.push(keys=lists, args=[limit, step, dumps(message)]))
            waiting = -reply - 1 if reply < 0 else None
        else:
            args = [limit, step, dumps(message), _tag(message), *submission.args()]
            submission.reply = cast("list[Any]", self.scripts.submit(keys=lists, args=args))
            waiting = submission.num_waiting
        if waiting is not None:
            raise QueueFull(waiting, limit)

    def _lists(self, queue: str) -> list[str]:
        return [self._q_for_pri(queue, step) for step in self.priority_steps]

    # ---- consume --------------------------------------------------------------------------------
    #
    # kombu pops a message with BRPOP and notes it as reserved afterwards, so that one whose reply never
    # arrives is lost. Here BRPOP waits for a bell, and one script takes the message and leases it. A lost
    # bell costs a second: the message is looked for whenever BRPOP returns, also without one.

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Begin to consume, with what already waits."""
        result = super().basic_consume(queue, *args, **kwargs)
        if self._has_bells:
            self.scripts.ring(args=[queue])
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
        bells = [BELL_PREFIX + queue for queue in self.active_queues]
        connection.send_command("BRPOP", *bells, timeout or self.brpop_timeout)

    def _brpop_read(self, **options: Any) -> bool:
        if not self._awaits_bell:
            return cast("bool", super()._brpop_read(**options))
        try:
            self.client.parse_response(self.client.connection, "BRPOP", **options)
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        return self._take()

    def _take(self) -> bool:
        queues = [] if self._closing else self._queue_cycle.consume(len(self.active_queues))
        for queue in queues:
            args = [self.unacked_index_key, self.unacked_key]
            text = cast("bytes | None", self.scripts.take(keys=self._lists(queue), args=args))
            if text is not None:
                self._queue_cycle.rotate(queue)
                message = loads(text)
                self.taken = message["properties"]["delivery_tag"]
                self.connection._deliver(message, queue)
                return True
        raise Empty


class SentinelChannel(Channel, kombu_redis.SentinelChannel):  # type: ignore[misc]
    """A channel to the master that Sentinel names."""

    from_transport_options = (*kombu_redis.SentinelChannel.from_transport_options, "queue_limit", "sentinels")
    #: Host and port of every Sentinel.
    sentinels: list[tuple[str, int]]

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        # kombu reads the Sentinels off the URL's alternates, but it also "switches" to those when a
        # connection fails, which would leave this transport for the stock one.
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


class Transport(kombu_redis.Transport):  # type: ignore[misc]
    """See the module."""

    Channel = Channel
    supports_batch_publish = False


class SentinelTransport(kombu_redis.SentinelTransport):  # type: ignore[misc]
    """See the module."""

    Channel = SentinelChannel
    supports_batch_publish = False
