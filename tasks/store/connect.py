"""Connects to Redis: translates the URL from the settings for kombu and for redis-py."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlencode

from redis import Connection, Redis, SSLConnection, UnixDomainSocketConnection, exceptions
from redis.sentinel import Sentinel

from tasks.contract.redis_place import Kind, RedisPlace
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
_CONNECTIONS = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}


@dataclass(frozen=True, slots=True)
class Broker:
    """What kombu needs to reach Redis: a URL that names our transport, and transport options."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, redis_url: str) -> Broker:
        """Translate the setting ``redis_url``. Raises ``ValueError``, as :class:`RedisPlace` does."""
        place = RedisPlace.parse(redis_url)
        options: dict[str, Any] = {n: v for n, v in place.options.items() if not n.startswith("ssl_")}
        if place.kind == "unix":
            options["socket_path"] = place.path
        if place.kind == "sentinel":
            options |= {"sentinels": list(place.hosts), "master_name": place.master}
        address = f"{place.user_info}{place.first_address}/{place.db}"
        return cls(f"inference-{place.kind}://{address}{_tls_query(place)}", options)


def connect(redis_url: str, max_connections: int = 32, free_timeout_s: float = 20.0, **options: Any) -> Redis:
    """A client for the Redis at ``redis_url``; threads and greenlets wait for a free connection.

    Args:
        redis_url: as in the settings.
        max_connections: most commands in progress at the same time; Sentinel's pool has no bound.
        free_timeout_s: how long a command waits for a free connection.
        options: options of redis-py, which override :data:`TIMEOUTS` and the URL's.
    """
    place = RedisPlace.parse(redis_url)
    options = TIMEOUTS | REPEATED | dict(place.options) | options
    if place.kind == "sentinel":
        return _by_sentinel(place, options)
    bounds = {"max_connections": max_connections, "timeout": free_timeout_s}
    pool = Pool(  # type: ignore[no-untyped-call]
        connection_class=_CONNECTIONS[place.kind],
        **_address(place),
        **bounds,
        **for_kind(place.kind, options),
    )
    return Redis(connection_pool=pool)


def for_kind(kind: Kind, options: dict[str, Any]) -> dict[str, Any]:
    """The ``options`` that a connection of this kind takes: a Unix socket knows no keep-alive."""
    is_unix = kind == "unix"
    return {n: v for n, v in options.items() if not (is_unix and n.startswith("socket_keepalive"))}


def _address(place: RedisPlace) -> dict[str, Any]:
    known = {"db": place.db, "username": place.username, "password": place.password}
    if place.kind == "unix":
        return known | {"path": place.path}
    return known | {"host": place.hosts[0][0], "port": place.hosts[0][1]}


def _tls_query(place: RedisPlace) -> str:
    """Have the certificate verified unless the URL says otherwise; by default, kombu does not verify it."""
    if place.kind != "rediss":
        return ""
    said = {
        n: str(v).lower() if isinstance(v, bool) else v for n, v in place.options.items() if n[:4] == "ssl_"
    }
    return "?" + urlencode({"ssl_cert_reqs": "required", **said})


def _by_sentinel(place: RedisPlace, options: dict[str, Any]) -> Redis:
    named = {"username": place.username, "password": place.password}
    credentials = {name: value for name, value in named.items() if value}
    manager = Sentinel(place.hosts, **credentials, **options)  # type: ignore[no-untyped-call]
    # Sentinel's pool never waits but raises an error, so it may grow large.
    client = manager.master_for(place.master, db=place.db, max_connections=10_000)  # type: ignore[no-untyped-call]
    return cast("Redis", client)
