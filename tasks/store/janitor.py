"""Finds accepted requests that are lost: neither waiting in a list, nor reserved by a worker, nor over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from tasks.contract import redis_names
from tasks.store.requests import script_source

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger(__name__)

#: Seconds from a request's acceptance to the first look at it, and between two looks.
GRACE_S = 5.0
#: Most requests looked at in one round.
BATCH = 200


class Janitor:
    """Queues lost requests again, at the head of their lists. Several janitors may work at the same time.

    A message is lost when a worker acknowledges it without finishing the request, or when somebody deletes a
    list. Our own operations lose none, because each is one script.
    """

    def __init__(self, redis: Redis, grace_s: float = GRACE_S) -> None:
        """``grace_s`` bounds the cost: each request is looked at once in so many seconds."""
        self._grace_s = grace_s
        self._tidy = redis.register_script(script_source("janitor"))

    def tidy(self) -> list[str]:
        """Do one round; return the ids of the requests queued again. Raises ``redis.RedisError``."""
        ids = cast("list[bytes]", self._tidy(args=[redis_names.UNACKED, self._grace_s, BATCH]))
        found = [request_id.decode() for request_id in ids]
        if found:
            logger.warning("%d requests had lost their messages and are queued again: %s", len(found), found)
        return found
