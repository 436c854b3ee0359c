"""Accepted requests whose messages are lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import ErrorCode, State
from tasks.store.janitor import BATCH, MAX_LOSSES, Janitor
from tests.integration.life import LIST, SUCCEEDED, Life

pytestmark = pytest.mark.integration


@pytest.fixture
def life(redis: Redis) -> Life:
    return Life(redis)


def lose(life: Life, request_id: str = "r") -> None:
    """Acknowledge a request's message before the request's end."""
    taken, _ = life.run(request_id)
    life.acknowledge(taken)


def test_request_in_its_place_is_left_alone(life: Life) -> None:
    life.accept("waits", "runs", "reserved", "again")
    life.redis.rpoplpush(LIST, LIST)  # the order must not matter
    for _ in range(3):
        life.take()
    assert life.janitor.tidy() == []
    assert len(life.waiting()) == 1


def test_lost_request_is_queued_again_at_the_head(life: Life) -> None:
    lose(life)
    life.accept("a", "b")
    assert life.janitor.tidy() == ["r"]
    assert life.waiting() == ["r", "a", "b"]
    assert life.state("r") is State.QUEUED
    assert life.janitor.tidy() == []
    _, claim = life.run_next()
    assert claim.number == 2
    assert life.append(claim, 1)


def test_message_that_somebody_deleted_is_queued_again(life: Life) -> None:
    life.accept("a", "b")
    life.redis.delete(LIST)
    assert sorted(life.janitor.tidy()) == ["a", "b"]
    assert sorted(life.waiting()) == ["a", "b"]


def test_what_runs_no_more_is_no_longer_counted(life: Life) -> None:
    """A script that Redis refused in its middle leaves such an entry."""
    life.run("r")
    for index in (redis_names.RUNNING, redis_names.ACTIVE, redis_names.DEADLINES):
        life.redis.zadd(index, {"over": 0})
    life.redis.zadd(redis_names.RUNNING, {"r": 0})
    life.janitor.tidy()
    assert life.redis.zrange(redis_names.RUNNING, 0, -1) == [b"r"]
    assert life.redis.zscore(redis_names.ACTIVE, "over") is None
    assert life.redis.zscore(redis_names.DEADLINES, "over") is None


def test_old_attempt_of_a_lost_request_may_not_write(life: Life) -> None:
    taken, claim = life.run("r")
    life.acknowledge(taken)
    assert life.janitor.tidy() == ["r"]
    assert not life.append(claim, 1)


def test_new_message_has_a_tag_of_its_own(life: Life) -> None:
    taken, _ = life.run("r")
    life.acknowledge(taken)
    life.janitor.tidy()
    again = life.take()
    assert again is not None
    assert again.id == "r"
    assert again.tag != taken.tag
    life.acknowledge(taken)
    assert life.reserved() == ["r"]


def test_message_keeps_its_priority(life: Life, redis: Redis) -> None:
    life.accept("r")
    low = LIST + "\x06\x169"
    redis.delete(LIST)
    redis.hset(redis_names.record("r"), "list", low)
    assert life.janitor.tidy() == ["r"]
    assert redis.llen(low) == 1
    assert redis.exists("inference:bell:" + LIST)


def test_request_that_is_over_is_forgotten(life: Life, redis: Redis) -> None:
    _, claim = life.run("done")
    life.append(claim, 1, SUCCEEDED)
    life.accept("cancelled", "gone")
    life.store.cancel("cancelled")
    redis.delete(redis_names.record("gone"), LIST)
    assert life.janitor.tidy() == []
    assert redis.zcard(redis_names.ACTIVE) == 0


def test_each_is_looked_at_once_in_a_while(redis: Redis, life: Life) -> None:
    janitor = Janitor(redis, grace_s=1000.0)
    lose(life)
    assert janitor.tidy() == []
    redis.zadd(redis_names.ACTIVE, {"r": 1})
    assert janitor.tidy() == ["r"]


def test_round_is_bounded_and_the_next_goes_on(life: Life) -> None:
    names = [f"r{n}" for n in range(BATCH + 10)]
    life.accept(*names)
    life.redis.delete(LIST)
    assert len(life.janitor.tidy()) == BATCH
    assert len(life.janitor.tidy()) == 10


def test_several_at_once_queue_it_once(life: Life) -> None:
    for n in range(20):
        lose(life, f"r{n}")
    with ThreadPoolExecutor(8) as threads:
        found = [i for ids in threads.map(lambda _: life.janitor.tidy(), range(8)) for i in ids]
    assert sorted(found) == sorted(f"r{n}" for n in range(20))
    assert len(life.waiting()) == 20


def test_what_is_lost_again_and_again_ends(life: Life) -> None:
    lose(life)
    num_found = 0
    while found := life.janitor.tidy():
        num_found += len(found)
        taken = life.take()
        assert taken is not None
        life.claim("r")
        life.acknowledge(taken)
    assert num_found == MAX_LOSSES
    assert life.state("r") is State.FAILED
    failure = life.end("r").error
    assert failure is not None
    assert failure.code is ErrorCode.ATTEMPTS_EXHAUSTED
    assert "lost 5 times" in failure.message


def test_what_is_discarded_unclaimed_again_and_again_ends(life: Life) -> None:
    """As when a worker takes each message and acknowledges it, without asking for the request."""
    life.accept("r")
    while life.state("r") is not State.FAILED:
        taken = life.take()
        assert taken is not None
        life.acknowledge(taken)
        life.janitor.tidy()
    assert life.waiting() == life.reserved() == []
    assert life.record("r").attempt == 0


def test_progress_forgets_earlier_losses(life: Life) -> None:
    lose(life)
    for seq in range(1, 3 * MAX_LOSSES):
        assert life.janitor.tidy() == ["r"]
        taken, claim = life.run_next()
        assert life.append(claim, seq)
        life.acknowledge(taken)


def test_a_foreign_key_in_a_records_place_stops_nothing_else(life: Life, redis: Redis) -> None:
    life.accept("foreign", "r")
    redis.set(redis_names.record("foreign"), "not ours")
    redis.delete(LIST)
    assert life.janitor.tidy() == ["r"]
    assert life.waiting() == ["r"]
