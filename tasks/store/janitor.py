"""Finds accepted requests that are lost: neither waiting in a list, nor reserved by a worker, nor over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from tasks.contract import redis_names
from tasks.store.requests import script_source

if TYPE_CHECKING:
    from redis import Redis

logger = logging.getLogger(__name__)

#: Seconds from a request's acceptance to the first look at it, and between two looks.
GRACE_S = 5.0
#: Most requests looked at in one round.
BATCH = 200
#: How often a request may be found lost in a row, without getting any further, before it fails.
MAX_LOSSES = 5


class Janitor:
    """Queues lost requests again, at the head of their lists. Several janitors may work at the same time.

    A message is lost when a worker acknowledges it without finishing the request, or when somebody deletes a
    list. Our own operations lose none, because each is one script.
    """

    def __init__(self, redis: Redis, result_ttl_s: int = 3600, grace_s: float = GRACE_S) -> None:
        """Make a janitor.

        Args:
            redis: a client with ``decode_responses=False``.
            result_ttl_s: seconds that the record and log of a request that it gives up are kept.
            grace_s: bounds the cost: each request is looked at once in so many seconds.
        """
        self._grace_s, self._ttl = grace_s, result_ttl_s
        self._tidy = redis.register_script(script_source("janitor"))

    def tidy(self) -> list[str]:
        """Do one round; return the ids of the requests queued again. Raises ``redis.RedisError``."""
        args: list[Any] = [redis_names.UNACKED, self._grace_s, BATCH, MAX_LOSSES, self._ttl]
        found, ended = (
            [request_id.decode() for request_id in ids]
            for ids in cast("list[list[bytes]]", self._tidy(args=args))
        )
        if found:
            logger.warning("%d requests had lost their messages and are queued again: %s", len(found), found)
        if ended:
            logger.error(
                "%d requests lost their messages again and again and have failed: %s", len(ended), ended
            )
        return found
