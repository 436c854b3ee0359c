"""Which children serve which models: every child with a context registers in Redis and renews that.

A dead child's registration ends after :data:`TTL_S`; nothing waits for the child. Times are Redis's clock.
Entries of a format that this code doesn't know (:mod:`tasks.contract.versions`) are left out, with one
warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from tasks.contract import redis_names, versions
from tasks.contract.status import Child
from tasks.contract.tolerant import read_or_warn
from tasks.store.requests import script_source

if TYPE_CHECKING:
    from redis import Redis

#: Seconds between two announcements of a child, and seconds that an announcement counts.
HEARTBEAT_S = 2.0
TTL_S = 7
#: The only fields of a child that the last release can read: with one more, its APIs answer 503. Its APIs
#: read a separate key, which can go once the last release drops unknown fields, as this one does.
LAST_RELEASE_FIELDS = ("id", "worker", "pid", "model", "n_ctx", "slots", "busy", "work", "index")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that some worker has served; ``created`` is its file's time in Unix seconds."""

    name: str
    n_ctx: int
    created: int


class Registry:
    """The children and models known in Redis. Methods raise ``redis.RedisError`` when it can't be reached."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        # A script, because it may still write when Redis is full.
        self._announce = redis.register_script(script_source("announce"))

    def announce(self, child: Child) -> None:
        """Register a child as alive for the next :data:`TTL_S` seconds."""
        known = {name: getattr(child, name) for name in LAST_RELEASE_FIELDS}
        texts = [
            redis_names.heartbeat(child.id),
            _text(asdict(child)),
            redis_names.child(child.id),
            _text(known),
        ]
        self._announce(args=[redis_names.CHILDREN, child.id, TTL_S, *texts])

    def withdraw(self, child_id: str) -> None:
        """Delete a child's registration."""
        with self._redis.pipeline() as pipe:
            pipe.delete(redis_names.heartbeat(child_id), redis_names.child(child_id))
            pipe.zrem(redis_names.CHILDREN, child_id)
            pipe.execute()

    def children(self) -> list[Child]:
        """The live children, in order of their ids."""
        ids = [each.decode() for each in cast("list[bytes]", self._redis.zrange(redis_names.CHILDREN, 0, -1))]
        if not ids:
            return []
        names = [*map(redis_names.heartbeat, ids), *map(redis_names.child, ids)]
        found = cast("list[bytes | None]", self._redis.mget(names))
        pairs = zip(found[: len(ids)], found[len(ids) :], strict=True)
        return read_children(text for each in pairs if (text := each[0] or each[1]))

    def add_model(self, model: ServedModel) -> None:
        """Make a model known. It stays known when its workers go, so that requests can wait for new ones."""
        self._redis.hset(redis_names.MODELS, model.name, _text(asdict(model)))

    def models(self) -> dict[str, ServedModel]:
        """Every model known, by name."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(redis_names.MODELS))
        return {model.name: model for value in raw.values() if (model := read_model(value))}


def read_children(texts: Iterable[bytes]) -> list[Child]:
    """The children that registrations describe, in order of their ids."""
    found = (read_or_warn(Child, text, "child", versions.REGISTRATION) for text in texts)
    return sorted((child for child in found if child), key=lambda child: child.id)


def read_model(text: bytes) -> ServedModel | None:
    """The model in a description; ``None`` if it can't be read."""
    return read_or_warn(ServedModel, text, "model", versions.REGISTRATION)


def _text(raw: dict[str, Any]) -> str:
    return json.dumps(versions.written(versions.REGISTRATION) | raw)
