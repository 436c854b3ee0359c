"""Finds keys under our names that have another type than ours: Redis' WRONGTYPE doesn't name the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from tasks.contract import redis_names
from tasks.contract.messages import queue_name

if TYPE_CHECKING:
    from redis import Redis

#: Keys looked at in one round trip, and most round trips: Redis may hold many keys of other programs.
PAGE, MAX_PAGES = 1000, 200
#: Most keys that are named.
MAX_NAMED = 5

_TYPES = {
    redis_names.RUNNING: "zset",
    redis_names.DEADLINES: "zset",
    redis_names.ACTIVE: "zset",
    redis_names.UNACKED: "hash",
    redis_names.LEASES: "zset",
    redis_names.OUTCOMES: "list",
    redis_names.REQUEUED: "hash",
    redis_names.TOTALS: "hash",
    redis_names.RECENT: "list",
    redis_names.CHILDREN: "zset",
    redis_names.MODELS: "hash",
    redis_names.LAST_WORDS: "zset",
    redis_names.DEAD_LETTERS: "list",
    redis_names.RESULTS: "list",
    redis_names.RESULTS_BYTES: "string",
    redis_names.CLOCK: "string",
}
_TYPES_BY_PREFIX = {
    redis_names.record(""): "hash",
    redis_names.log(""): "stream",
    redis_names.claims(""): "list",
    redis_names.named(""): "string",
    redis_names.child(""): "string",
    redis_names.heartbeat(""): "string",
    redis_names.last_words(""): "string",
    redis_names.bell(""): "list",
    queue_name(""): "list",
    "_kombu.binding_deadlines": "zset",
    "_kombu.binding": "set",
}


def foreign_keys(redis: Redis) -> list[str]:
    """The first few keys of another type than ours, each with its type. Raises ``redis.RedisError``."""
    found = _found(redis)
    return [text for text, _ in zip(found, range(MAX_NAMED), strict=False)]


def _found(redis: Redis) -> Iterator[str]:
    for pattern in ("inference*", "_kombu.binding*"):
        for names in _pages(redis, pattern):
            with redis.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.type(name)
                types = [each.decode() for each in pipe.execute()]
            for name, kind in zip(names, types, strict=True):
                ours = _type_of(name)
                if kind not in ("none", ours) and ours:
                    yield f"{name} is a {kind} and should be a {ours}"


def _pages(redis: Redis, pattern: str) -> Iterator[list[str]]:
    cursor = 0
    for _ in range(MAX_PAGES):
        cursor, names = cast("tuple[int, list[bytes]]", redis.scan(cursor, match=pattern, count=PAGE))
        yield [name.decode(errors="replace") for name in names]
        if not cursor:
            return


def _type_of(name: str) -> str | None:
    if name in _TYPES:
        return _TYPES[name]
    return next((kind for prefix, kind in _TYPES_BY_PREFIX.items() if name.startswith(prefix)), None)
