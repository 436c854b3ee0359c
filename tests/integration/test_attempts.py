"""Attempts: which one may write, and when a request that kills its workers is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import ErrorCode, State
from tests.integration.life import LEASE_S, MAX_ATTEMPTS, SUCCEEDED, Life

pytestmark = pytest.mark.integration


@pytest.fixture
def life(redis: Redis) -> Life:
    return Life(redis)


# ---- giving up ----------------------------------------------------------------------------------


def test_request_that_kills_its_child_each_time_is_given_up(life: Life) -> None:
    taken, _ = life.run("r")
    for _ in range(MAX_ATTEMPTS - 1):
        assert life.put_back(taken) == 1
        taken, _ = life.run_next()
    life.put_back(taken)
    assert life.claim("r") is None
    end = life.end("r")
    assert end.state is life.state("r") is State.FAILED
    assert end.error is not None
    assert end.error.code is ErrorCode.ATTEMPTS_EXHAUSTED
    assert life.store.num_running() == 0


def test_request_that_gets_further_each_time_is_never_given_up(life: Life) -> None:
    taken, claim = life.run("r")
    for n in range(1, 3 * MAX_ATTEMPTS):
        assert life.append(claim, n)
        life.put_back(taken)
        assert life.store.deaths("r") == 1
        taken, claim = life.run_next()
        assert (claim.number, claim.first_seq) == (n + 1, n)


def test_hand_backs_count_for_nothing(life: Life) -> None:
    taken, _ = life.run("r")
    for _ in range(3 * MAX_ATTEMPTS):
        life.put_back(taken, charge=0.0)
        taken, _ = life.run_next()
    assert life.store.deaths("r") == 0


def test_lost_leases_count_a_quarter(life: Life) -> None:
    taken, _ = life.run("r")
    for _ in range(4 * MAX_ATTEMPTS - 1):
        assert life.lose_lease(taken) == 1
        taken, _ = life.run_next()
    life.lose_lease(taken)
    assert life.claim("r") is None
    assert life.state("r") is State.FAILED


def test_death_before_the_claim_counts_for_nothing(life: Life) -> None:
    life.accept("r")
    taken = life.take()
    assert taken is not None
    life.put_back(taken)
    assert life.store.deaths("r") == 0
    assert life.state("r") is State.QUEUED


# ---- which attempt may write --------------------------------------------------------------------


def test_request_that_waits_again_is_shown_as_queued(life: Life) -> None:
    taken, claim = life.run("r")
    assert life.store.num_running() == 1
    life.lose_lease(taken)
    assert life.state("r") is State.QUEUED
    assert life.store.num_running() == 0
    assert not life.append(claim, 1)  # the old attempt stops even before a new one begins
    assert life.record("r").seq == 0


def test_late_acknowledgement_leaves_the_next_delivery_alone(life: Life) -> None:
    taken, _ = life.run("r")
    life.lose_lease(taken)
    again, _ = life.run_next()
    life.acknowledge(taken)
    assert life.reserved() == ["r"]
    life.acknowledge(again)
    assert life.reserved() == []


def test_two_attempts_of_one_number_are_told_apart(life: Life, redis: Redis) -> None:
    _, lost = life.run("r")
    redis.hset(
        redis_names.record("r"), mapping={"attempt": 0, "state": "queued"}
    )  # Redis came back without the attempt
    claim = life.claim("r")
    assert claim is not None
    assert claim.number == lost.number
    assert not life.append(lost, 1)
    assert life.append(claim, 1)


def test_event_that_would_leave_a_gap_stops_its_attempt(life: Life) -> None:
    _, claim = life.run("r")
    assert life.append(claim, 1)
    assert not life.append(claim, 3)
    assert life.append(claim, 1)  # a repeated event does no harm
    assert [event.seq for event in life.store.read_log("r")] == [1]


# ---- the time limit -----------------------------------------------------------------------------


def test_time_limit_ends_a_request_that_waits(life: Life) -> None:
    life.accept("r", timeout_s=0.0)
    life.accept("patient", timeout_s=60.0)
    assert life.store.expire_due() == 1
    error = life.end("r").error
    assert error is not None
    assert (error.code, life.state("r")) == (ErrorCode.REQUEST_TIMEOUT, State.FAILED)
    assert life.waiting() == ["patient"]


def test_time_limit_ends_a_request_at_its_claim(life: Life) -> None:
    life.accept("r", timeout_s=0.0)
    assert life.claim("r") is None
    assert life.state("r") is State.FAILED


def test_time_limit_ends_a_request_whose_worker_does_not(life: Life, redis: Redis) -> None:
    _, claim = life.run("r", timeout_s=60.0)
    assert life.store.expire_due() == 0
    redis.zadd(redis_names.DEADLINES, {"r": 1})
    redis.hset(redis_names.record("r"), "time_limit", 0)
    assert life.store.expire_due() == 1
    assert not life.append(claim, 1)


def test_time_limit_lasts_through_a_put_back(life: Life, redis: Redis) -> None:
    taken, _ = life.run("r", timeout_s=60.0)
    life.put_back(taken)
    assert redis.zscore(redis_names.DEADLINES, "r") is not None


def test_patience_ends_with_the_first_claim(life: Life, redis: Redis) -> None:
    taken, _ = life.run("r", queue_timeout_s=60.0)
    life.put_back(taken)
    redis.hset(redis_names.record("r"), "queue_timeout", 0)
    redis.zadd(redis_names.DEADLINES, {"r": 1})
    assert life.store.expire_due() == 0
    assert life.claim("r") is not None


# ---- nothing is left ----------------------------------------------------------------------------


def test_finished_requests_leave_what_expires(life: Life, redis: Redis) -> None:
    taken, claim = life.run("r", timeout_s=60.0)
    life.append(claim, 1)
    life.append(claim, 2, SUCCEEDED)
    life.acknowledge(taken)
    lasting = {key.decode() for key in redis.scan_iter() if redis.ttl(key) == -1}
    assert lasting <= {
        redis_names.OUTCOMES,
        redis_names.TOTALS,
        redis_names.RECENT,
        redis_names.RESULTS,
        redis_names.RESULTS_BYTES,
        redis_names.CLOCK,
        "inference:bell:inference.m",
    }


def test_lease_is_not_lost_before_its_time(life: Life) -> None:
    taken, _ = life.run("r")
    assert life.put_back(taken, 0.25, LEASE_S) == -1
    assert life.reserved() == ["r"]


def test_stale_claim_without_its_word_is_judged_by_its_number(life: Life) -> None:
    _, claim = life.run("r")
    assert life.append(replace(claim, fence=""), 1)
    assert not life.append(replace(claim, number=2, fence=""), 2)
