"""Who serves what: every child with a context registers itself in Redis and keeps that alive.

A child that dies is gone from here after :data:`TTL_S`; nothing waits for it. Times are Redis's clock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, cast

from tasks import keys
from tasks.store import script_source

if TYPE_CHECKING:
    from redis import Redis

#: Seconds between two announcements of a child, and seconds that one counts.
HEARTBEAT_S = 2.0
TTL_S = 7


@dataclass(frozen=True, slots=True)
class Child:
    """One worker child that holds a context: ``slots`` sequences of ``n_ctx`` tokens, ``busy`` of them used.

    ``id`` is ``worker/pid``; ``worker`` is Celery's node name. ``index`` is the child's number, which a dead
    one leaves to its replacement, and ``work`` counts what the engines of all that had it have done, see
    :class:`tasks.engine.observer.WorkCounter`. ``kernels`` says which of llama.cpp's compute.
    """

    id: str
    worker: str
    pid: int
    model: str
    n_ctx: int
    slots: int
    busy: int = 0
    work: dict[str, int] = field(default_factory=dict)
    index: int = 0
    kernels: str = ""


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
        # A script, since it may go on when Redis is full.
        self._announce = redis.register_script(script_source("announce"))

    def announce(self, child: Child) -> None:
        """Say that a child lives, for the next :data:`TTL_S` seconds."""
        text = json.dumps(asdict(child))
        self._announce(args=[keys.child(child.id), keys.CHILDREN, child.id, text, TTL_S])

    def withdraw(self, child_id: str) -> None:
        """Say that a child is going."""
        with self._redis.pipeline() as pipe:
            pipe.delete(keys.child(child_id))
            pipe.zrem(keys.CHILDREN, child_id)
            pipe.execute()

    def children(self) -> list[Child]:
        """The children alive, in order of their ids."""
        ids = cast("list[bytes]", self._redis.zrange(keys.CHILDREN, 0, -1))
        if not ids:
            return []
        found = cast("list[bytes | None]", self._redis.mget([keys.child(i.decode()) for i in ids]))
        return sorted((Child(**json.loads(raw)) for raw in found if raw), key=lambda child: child.id)

    def add_model(self, model: ServedModel) -> None:
        """Make a model known; it stays so when its workers go, so that its requests may wait for them."""
        self._redis.hset(keys.MODELS, model.name, json.dumps(asdict(model)))

    def models(self) -> dict[str, ServedModel]:
        """Every model known, by name."""
        raw = cast("dict[bytes, bytes]", self._redis.hgetall(keys.MODELS))
        return {name.decode(): ServedModel(**json.loads(value)) for name, value in raw.items()}
