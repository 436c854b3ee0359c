"""Why workers gave up, kept in Redis for an hour so that other processes can tell.

Last words are deleted when a worker of the same model becomes ready. Functions raise ``redis.RedisError``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from tasks.contract import redis_names, versions
from tasks.contract.tolerant import read_or_warn
from tasks.store.requests import script_source

if TYPE_CHECKING:
    from redis import Redis

#: Seconds that last words are kept.
TTL_S = 3600


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a worker said as it ended, ``age_s`` seconds ago; ``worker`` is Celery's node name."""

    worker: str
    model: str
    text: str
    age_s: float = 0.0


def leave(redis: Redis, words: LastWords) -> None:
    """Keep a worker's last words, in place of its earlier ones."""
    text = json.dumps({"worker": words.worker, "model": words.model, "text": words.text})
    announce = redis.register_script(script_source("announce"))
    announce(args=[redis_names.LAST_WORDS, words.worker, TTL_S, redis_names.last_words(words.worker), text])


def read(redis: Redis) -> list[LastWords]:
    """All last words that are kept, the latest first."""
    workers = [raw.decode() for raw in cast("list[bytes]", redis.zrange(redis_names.LAST_WORDS, 0, -1))]
    with redis.pipeline(transaction=False) as pipe:
        for worker in workers:
            pipe.get(redis_names.last_words(worker))
            pipe.pttl(redis_names.last_words(worker))
        answers = pipe.execute() if workers else []
    found = (_parse(raw, left) for raw, left in zip(answers[::2], answers[1::2], strict=True) if raw)
    return sorted(filter(None, found), key=lambda words: words.age_s)


def forget(redis: Redis, model: str) -> None:
    """Delete the last words of a model's workers."""
    for words in read(redis):
        if words.model == model:
            redis.delete(redis_names.last_words(words.worker))
            redis.zrem(redis_names.LAST_WORDS, words.worker)


def _parse(raw: bytes, left_ms: int) -> LastWords | None:
    found = read_or_warn(LastWords, raw, "worker's last words", versions.REGISTRATION)
    return None if found is None else replace(found, age_s=max(0.0, TTL_S - left_ms / 1e3))
