"""The pool of connections to Redis when connections, or files to open, run out."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MaxConnectionsError

from tasks.store.connect import connect
from tests.ports import free_port

pytestmark = pytest.mark.integration

SIZE = 3


@pytest.fixture
def client(valkey_url: str) -> Iterator[Redis]:
    made = connect(valkey_url, SIZE, 0.01)
    yield made
    made.close()


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open no more files inside the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, before[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_exhausted_pool_is_no_absent_redis(client: Redis) -> None:
    pool = client.connection_pool
    taken = [pool.get_connection() for _ in range(SIZE)]
    with pytest.raises(MaxConnectionsError, match="All 3 connections"):
        client.ping()
    for connection in taken:
        pool.release(connection)
    assert client.ping()


def test_an_absent_redis_is_no_exhausted_pool() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0", SIZE, 0.01)
    for _ in range(2 * SIZE):
        with pytest.raises(RedisConnectionError) as failed:
            client.ping()
        assert not isinstance(failed.value, MaxConnectionsError)


def test_the_pool_is_as_large_as_before_after_files_ran_out(client: Redis) -> None:
    with no_more_files():
        for _ in range(2 * SIZE):
            with pytest.raises(MaxConnectionsError, match="open files"):
                client.ping()
    pool = client.connection_pool
    taken = [pool.get_connection() for _ in range(SIZE)]
    for connection in taken:
        pool.release(connection)
    assert client.ping()
