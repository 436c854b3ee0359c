"""A script over a connection of its own, on a real server."""

from __future__ import annotations

from threading import Thread

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import ResponseError

from tasks.store.script_call import Line

pytestmark = pytest.mark.integration

ECHO = "return {ARGV[1], #ARGV}"


def test_a_script_is_loaded_where_it_is_missing(redis: Redis):
    line = Line(redis, ECHO)
    assert line.call(["hello", 2]) == [b"hello", 2]
    redis.script_flush()
    assert line.call(["again"]) == [b"again", 1]


def test_after_a_lost_connection_it_connects_again(redis: Redis):
    line = Line(redis, ECHO)
    line.call(["before"])
    redis.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(LostError):
        line.call(["lost"])
    assert line.call(["after"]) == [b"after", 1]


def test_an_error_of_the_script_leaves_the_connection_in_order(redis: Redis):
    line = Line(redis, "return redis.call(ARGV[1])")
    with pytest.raises(ResponseError):
        line.call(["NOSUCHCOMMAND"])
    assert line.call(["PING"]) == b"PONG"


def test_threads_get_their_own_answers(redis: Redis):
    line = Line(redis, ECHO)
    found: dict[int, list[bytes]] = {}

    def ask(number: int) -> None:
        found[number] = [line.call([f"{number}-{i}"])[0] for i in range(200)]

    threads = [Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [f"{n}-{i}".encode() for i in range(200)] for n in range(8)}
