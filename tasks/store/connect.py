"""Connects to Redis: translates the URL from the settings for kombu and for redis-py."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import Redis, exceptions
from redis.sentinel import Sentinel

from tasks.store.pool import Pool

#: Seconds to wait for Redis's answer to a command, and for a connection to it.
COMMAND_TIMEOUT_S, CONNECT_TIMEOUT_S = 3.0, 2.0
#: Seconds of silence on a connection before the system asks whether the other end is still there, between
#: two such questions, and how many of them may stay without an answer.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 3, 1, 3
#: Seconds that sent data may stay unacknowledged: the system would send it again for a quarter of an hour.
UNACKNOWLEDGED_S = 6
#: Seconds of silence on a pooled connection before a PING precedes its next command: long, since a dead one
#: is closed by the system meanwhile, and a PING costs a round trip.
HEALTH_CHECK_S = 10
#: Seconds between kombu's PINGs on its pub/sub connection; it also drops a connection whose BRPOP is overdue
#: by as much.
CONSUMER_HEALTH_CHECK_S = 2
#: The same as options of redis-py; kombu takes them, too.
TIMEOUTS: dict[str, Any] = {
    "socket_timeout": COMMAND_TIMEOUT_S,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_keepalive": True,
    "socket_keepalive_options": {
        socket.TCP_KEEPIDLE: KEEPALIVE_IDLE_S,
        socket.TCP_KEEPINTVL: KEEPALIVE_INTERVAL_S,
        socket.TCP_KEEPCNT: KEEPALIVE_PROBES,
        socket.TCP_USER_TIMEOUT: UNACKNOWLEDGED_S * 1000,
    },
    "health_check_interval": HEALTH_CHECK_S,
}
#: Errors after which a command is repeated over a new connection, as often as the client's ``retry`` says. A
#: replica's refusal is among them: after a failover, the same address may lead to the new master.
REPEATED: dict[str, Any] = {
    "retry_on_error": [exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError]
}


@dataclass(frozen=True, slots=True)
class Broker:
    """What kombu needs to reach Redis: a URL that names our transport, and transport options."""

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


def connect(redis_url: str, max_connections: int = 32, free_timeout_s: float = 20.0, **options: Any) -> Redis:
    """A client for the Redis at ``redis_url``; threads and greenlets wait for a free connection.

    Args:
        redis_url: ``redis://``, ``rediss://`` or ``sentinel://``, as in the settings.
        max_connections: most commands in progress at the same time; Sentinel's pool has no bound.
        free_timeout_s: how long a command waits for a free connection.
        options: options of redis-py, which override :data:`TIMEOUTS` and its defaults.
    """
    options = TIMEOUTS | REPEATED | options
    if _scheme(redis_url) == "sentinel":
        return _SentinelPlace.parse(redis_url).connect(**options)
    bounds = {"max_connections": max_connections, "timeout": free_timeout_s}
    pool = Pool.from_url(redis_url, **bounds, **options)
    return Redis(connection_pool=pool)


def _scheme(redis_url: str) -> str:
    scheme = urlsplit(redis_url).scheme
    if scheme not in ("redis", "rediss", "sentinel"):
        raise ValueError(f"redis_url must begin with redis://, rediss:// or sentinel://, not {scheme!r}")
    return scheme


def _verified(url: str) -> str:
    """Have the certificate verified unless the URL says otherwise; by default, kombu does not verify it."""
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
        # Sentinel's pool never waits but raises an error, so it may grow large.
        client = manager.master_for(self.master, db=self.db, max_connections=10_000)  # type: ignore[no-untyped-call]
        return cast("Redis", client)
