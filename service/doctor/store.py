"""Checks whether Redis or Valkey can hold data that must not be lost."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import RedisError
from redis.exceptions import NoPermissionError

from service.doctor.finding import Finding, Level, mib
from service.doctor.rights import look_at_rights, trouble
from service.supervisor.errors import ServiceError
from service.supervisor.programs import valkey
from tasks.contract.redis_place import RedisPlace
from tasks.store.connect import connect
from tasks.store.troubles import Kind, kind_of

if TYPE_CHECKING:
    from redis import Redis

OLDEST = (7, 0)
#: Seconds; a longer round trip noticeably delays every token.
SLOW_S = 0.005
#: Seconds by which two hosts' clocks may differ before their logs and traces mislead.
SKEW_S = 1.0
#: Share of ``maxmemory`` in use above which the check warns.
FULL = 0.8
_TRIES = 5


def look_at_embedded(queue_memory: int = 0) -> Finding:
    """Check the Valkey that ``serve`` starts if the settings name no server; it may take so many MiB."""
    try:
        command = [str(valkey.binary()), "--version"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (ServiceError, OSError, subprocess.CalledProcessError) as error:
        return Finding("queue", Level.PROBLEM, f"No Valkey can be embedded: {error}", "Pass --redis-url.")
    version = re.search(r"v=(\S+)", told)
    told = f"embedded Valkey {version[1] if version else ''}, append-only file on, "
    return Finding("queue", Level.OK, told + f"{mib(valkey.memory_limit(queue_memory))} of memory at most")


def look_at_store(url: str) -> Iterator[Finding]:
    """Check the Redis or Valkey at ``url``."""
    shown = RedisPlace.parse(url).shown
    try:
        with connect(url) as client:
            yield from _look(client, shown)
    except RedisError as error:
        yield _absent(error, shown) if kind_of(error) is Kind.AWAY else trouble("Redis", error, shown)


def _absent(error: Exception, shown: str) -> Finding:
    return Finding("Redis", Level.PROBLEM, f"{shown}: {error}", "Start it, or pass another --redis-url.")


def _look(client: Redis, shown: str) -> Iterator[Finding]:
    yield from _info(client, shown)
    yield from look_at_rights(client)
    with suppress(NoPermissionError):  # the rights tell
        yield from _clock(client)


def _info(client: Redis, shown: str) -> Iterator[Finding]:
    try:
        info = client.info()
    except RedisError as error:
        if kind_of(error) is not Kind.NO_PERMISSION:
            raise
        told = f"{shown} answers, but not to INFO: its version, role, persistence and memory are unseen."
        yield Finding("Redis", Level.WARNING, told, "ACL SETUSER <user> +info, to have them checked.")
        return
    yield from (_version(info, shown), _role(info), _persistence(info), _memory(info))


def _version(info: dict[str, Any], shown: str) -> Finding:
    is_valkey = "valkey_version" in info
    text = str(info["valkey_version"] if is_valkey else info["redis_version"])
    told = f"{'Valkey' if is_valkey else 'Redis'} {text} at {shown}"
    known = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    old = (
        "" if known >= OLDEST else "Before Redis 7.0 all scripts stop at maxmemory; upgrade to 7.0 or newer."
    )
    return Finding.judge("Redis", told, problem=old)


def _role(info: dict[str, Any]) -> Finding:
    mode, role = info.get("redis_mode", "standalone"), info.get("role", "master")
    problem = ""
    if mode == "cluster":
        problem = "Celery has no transport for Redis Cluster; use one server, or Sentinel."
    elif role != "master":
        problem = "This server is a replica and takes no writes; pass the primary's URL, or sentinel://."
    elif info.get("loading"):
        problem = "It is still loading its data; wait."
    return Finding.judge("Redis role", f"{mode}, {role}", problem=problem)


def _persistence(info: dict[str, Any]) -> Finding:
    is_on = bool(info.get("aof_enabled"))
    told = f"append-only file {'on' if is_on else 'off'}"
    if is_on and info.get("aof_last_write_status", "ok") != "ok":
        return Finding.judge(
            "persistence", f"{told}, its last write failed", problem="See Redis's log; disk full?"
        )
    off = "A restart forgets accepted requests: CONFIG SET appendonly yes, and the same in its configuration."
    return Finding.judge("persistence", told, warning="" if is_on else off)


def _memory(info: dict[str, Any]) -> Finding:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy, evicted = str(info.get("maxmemory_policy", "")), int(info.get("evicted_keys", 0))
    told = f"{mib(used)} used of {mib(limit) if limit else 'no limit'}, {policy}, {evicted} keys evicted"
    if policy != "noeviction" and (limit or evicted):
        advice = "It throws accepted requests away when it is full: CONFIG SET maxmemory-policy noeviction"
        return Finding.judge("Redis memory", told, problem=advice)
    if not limit:
        return Finding.judge("Redis memory", told, warning="CONFIG SET maxmemory, below what the host has.")
    full = "Raise maxmemory, or lower --result-ttl; at the limit new requests get 503 store_full."
    return Finding.judge("Redis memory", told, warning=full if used > FULL * limit else "")


def _clock(client: Redis) -> Iterator[Finding]:
    round_trip, skew = min(_time(client) for _ in range(_TRIES))
    slow = (
        "Each token waits for this round trip; run Redis closer to this host." if round_trip > SLOW_S else ""
    )
    yield Finding.judge("round trip", f"{round_trip * 1e3:.2f} ms", warning=slow)
    apart = "Nothing fails, but times in logs and traces don't fit together; run NTP on both hosts."
    told = f"{skew * 1e3:+.1f} ms between this host and Redis, within {round_trip * 5e2:.1f} ms"
    yield Finding.judge("clock", told, warning=apart if abs(skew) > SKEW_S else "")


def _time(client: Redis) -> tuple[float, float]:
    """Seconds that a round trip takes, and seconds by which this host's clock is ahead."""
    sent = time.time()
    seconds, micros = client.time()
    received = time.time()
    return received - sent, (sent + received) / 2 - (seconds + micros / 1e6)
