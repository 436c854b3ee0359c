"""A pool of connections that says so when it has none to give, and keeps its size."""

from __future__ import annotations

import errno
from queue import Empty
from typing import Any

from redis import BlockingConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MaxConnectionsError

_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)


class Pool(BlockingConnectionPool):
    """Like redis-py's, in which an exhausted pool, or too many open files, look like an absent Redis."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """A connection.

        Raises:
            redis.MaxConnectionsError: none became free within ``timeout``, or no more files can be opened.
            redis.ConnectionError: Redis can't be reached.
        """
        try:
            return super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            cause = error.__context__
            if isinstance(cause, Empty):
                message = (
                    f"All {self.max_connections} connections to Redis were in use for {self.timeout:g} s"
                )
                raise MaxConnectionsError(message) from None
            if isinstance(cause, OSError) and cause.errno in _NO_MORE_FILES:
                raise MaxConnectionsError(f"No connection to Redis: {cause}") from error
            raise

    def make_connection(self) -> Any:
        """A new connection, which isn't open yet. Raises ``redis.MaxConnectionsError``."""
        try:
            return super().make_connection()  # type: ignore[no-untyped-call]
        except OSError as error:  # it opens files, too
            # redis-py would lose the place of this connection for good.
            self.pool.put_nowait(None)
            raise MaxConnectionsError(f"No connection to Redis: {error}") from error
