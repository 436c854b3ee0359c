"""Reads from Redis why a worker could not go on."""

from __future__ import annotations

from collections.abc import Callable


def words_of(url: str, name: str) -> Callable[[float], str]:
    """A part's ``last_words``: the reason that Celery's worker ``name`` left in the Redis at ``url``."""

    def read(age_s: float) -> str:
        from redis import RedisError

        from tasks.store.connect import connect
        from tasks.store.last_words import read as read_all

        try:
            with connect(url) as client:
                found = [words for words in read_all(client) if words.worker.startswith(f"{name}@")]
        except RedisError:
            return ""
        # Another worker may have had the same name, in a container for example.
        return next((words.text for words in found if words.age_s <= age_s), "")

    return read
