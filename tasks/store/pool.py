"""A pool of connections that says so when none of them is free."""

from __future__ import annotations

from queue import Empty
from typing import Any

from redis import BlockingConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MaxConnectionsError


class Pool(BlockingConnectionPool):
    """Like redis-py's, whose error for an exhausted pool looks like that of an absent Redis."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """A connection. Raises ``redis.MaxConnectionsError`` if none became free within ``timeout``."""
        try:
            return super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            if not isinstance(error.__context__, Empty):
                raise
            message = f"All {self.max_connections} connections to Redis were in use for {self.timeout:g} s"
            raise MaxConnectionsError(message) from None
