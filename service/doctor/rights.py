"""Checks whether Redis lets its user do all that the service needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from redis import RedisError

from service.doctor.finding import Finding, Level
from tasks.contract.redis_names import PREFIX
from tasks.store.troubles import Kind, Trouble, kind_of

if TYPE_CHECKING:
    from redis import Redis

_PLACE = f"{PREFIX}doctor"
_TEXT, _HASH, _LIST, _SORTED, _STREAM, _SET = (f"{_PLACE}:{kind}" for kind in "thlzxs")
#: A harmless use of each command that the scripts, the API and the workers need, on keys of the doctor's own.
USES: Mapping[str, tuple[str, ...]] = {
    "PING": (),
    "TIME": (),
    "GET": (_TEXT,),
    "SET": (_TEXT, "1", "EX", "60"),
    "INCRBY": (_TEXT, "1"),
    "DECRBY": (_TEXT, "1"),
    "MGET": (_TEXT,),
    "EXISTS": (_TEXT,),
    "EXPIRE": (_TEXT, "60"),
    "PTTL": (_TEXT,),
    "HSET": (_HASH, "a", "1"),
    "HGET": (_HASH, "a"),
    "HMGET": (_HASH, "a"),
    "HGETALL": (_HASH,),
    "HEXISTS": (_HASH, "a"),
    "HINCRBY": (_HASH, "a", "1"),
    "HKEYS": (_HASH,),
    "HVALS": (_HASH,),
    "HLEN": (_HASH,),
    "HSTRLEN": (_HASH, "a"),
    "HDEL": (_HASH, "a"),
    "LPUSH": (_LIST, "a"),
    "RPUSH": (_LIST, "a"),
    "LLEN": (_LIST,),
    "LINDEX": (_LIST, "0"),
    "LPOS": (_LIST, "a"),
    "LRANGE": (_LIST, "0", "-1"),
    "LREM": (_LIST, "0", "b"),
    "LTRIM": (_LIST, "0", "9"),
    "LPOP": (_LIST,),
    "RPOP": (_LIST,),
    "BRPOP": (_LIST, "0.01"),
    "SADD": (_SET, "a"),
    "SMEMBERS": (_SET,),
    "SREM": (_SET, "a"),
    "ZADD": (_SORTED, "1", "a"),
    "ZCARD": (_SORTED,),
    "ZRANGE": (_SORTED, "0", "-1"),
    "ZRANGEBYSCORE": (_SORTED, "0", "1"),
    "ZSCORE": (_SORTED, "a"),
    "ZREM": (_SORTED, "a"),
    "ZREMRANGEBYSCORE": (_SORTED, "0", "1"),
    "XADD": (_STREAM, "*", "a", "1"),
    "XRANGE": (_STREAM, "-", "+"),
    "PUBLISH": (_PLACE, "1"),
    "DEL": (_LIST,),
    "UNLINK": (_TEXT, _HASH, _LIST, _SORTED, _STREAM, _SET),
}


def look_at_rights(client: Redis) -> Iterator[Finding]:
    """Whether every command may be used, and whether Redis takes writes. Raises ``redis.RedisError``."""
    found = list(_errors(client))
    if missing := [(name, error) for name, error in found if kind_of(error) is Kind.NO_PERMISSION]:
        yield Finding("Redis rights", Level.PROBLEM, _told(missing), _advice(missing))
    elif not found:
        yield Finding(
            "Redis rights", Level.OK, f"all {len(USES)} commands may be used, and scripts and channels"
        )
    others = {kind_of(error): error for _, error in found}
    others.pop(Kind.NO_PERMISSION, None)
    for error in others.values():
        yield trouble("Redis writes", error)


def trouble(about: str, error: RedisError, place: str = "") -> Finding:
    """A problem that Redis itself reported; ``place`` is its address."""
    advice = Trouble.of(error).text.rpartition(" [")[0]
    return Finding(about, Level.PROBLEM, f"{place}: {error}" if place else str(error), f"{advice}.")


def _errors(client: Redis) -> Iterator[tuple[str, RedisError]]:
    with client.pipeline(transaction=False) as pipe:
        for name, arguments in USES.items():
            pipe.execute_command(name, *arguments)  # type: ignore[no-untyped-call]
        replies = pipe.execute(raise_on_error=False)
    for name, reply in zip(USES, replies, strict=True):
        if isinstance(reply, RedisError):
            yield name, reply
    yield from _script_error(client)
    yield from _channel_error(client)


def _script_error(client: Redis) -> Iterator[tuple[str, RedisError]]:
    for command in (
        ("SCRIPT", "LOAD", "return 1"),
        ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"),
    ):
        try:
            client.execute_command(*command)  # type: ignore[no-untyped-call]
        except RedisError as error:
            yield "|".join(command[:-1]) if command[0] == "SCRIPT" else command[0], error


def _channel_error(client: Redis) -> Iterator[tuple[str, RedisError]]:
    with client.pubsub() as pubsub:  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(_PLACE)
            pubsub.get_message(timeout=1)
        except RedisError as error:
            yield "SUBSCRIBE", error


def _told(missing: Iterable[tuple[str, RedisError]]) -> str:
    commands = [name for name, error in missing if "command" in str(error)]
    others = dict.fromkeys(str(error) for _, error in missing if "command" not in str(error))
    lacking = [f"it may not use {', '.join(commands)}"] if commands else []
    return "Redis' user lacks rights: " + "; ".join((*lacking, *others))


def _advice(missing: Iterable[tuple[str, RedisError]]) -> str:
    texts = {name: str(error) for name, error in missing}
    rules = [f"+{name.lower()}" for name, text in texts.items() if "command" in text]
    rules += ["~inference* ~_kombu* ~*.pidbox*"] if any("key" in text for text in texts.values()) else []
    rules += ["allchannels"] if any("channel" in text for text in texts.values()) else []
    return f"ACL SETUSER <user> {' '.join(rules)}"
