"""How fast a full queue drains, measured from what the scripts keep."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from tasks.contract import redis_names
from tasks.store.drain_rate import NUM_LATEST, DrainRate

pytestmark = pytest.mark.integration


@pytest.fixture
def rate(redis: Redis) -> DrainRate:
    return DrainRate(redis)


def claim(redis: Redis, ago_s: float, model: str = "m") -> None:
    seconds, micros = redis.time()
    redis.lpush(redis_names.claims(model), seconds + micros / 1e6 - ago_s)


def finish(redis: Redis, slot_ms: float, model: str = "m", **more: object) -> None:
    timings = {"prompt_ms": slot_ms / 4, "predicted_ms": slot_ms * 3 / 4}
    told = {"id": "r", "model": model, "child": "c", "created": 1.0, "finished": 2.0}
    end = {"state": "succeeded", "timings": timings, **more}
    redis.lpush(redis_names.RECENT, json.dumps({**told, "end": end}))


def test_nothing_is_known_at_first(rate: DrainRate) -> None:
    assert rate.interval_s("m", 8) is None


def test_slots_become_free_as_fast_as_requests_end(rate: DrainRate, redis: Redis) -> None:
    claim(redis, 3600)  # the queue was empty before
    claim(redis, 0)
    for _ in range(4):
        finish(redis, 4000)
        finish(redis, 100, model="other")
    assert rate.interval_s("m", 8) == pytest.approx(0.5, abs=0.05)
    assert rate.interval_s("m", 16) == pytest.approx(0.25, abs=0.05)


def test_a_queue_that_stands_still_shows(rate: DrainRate, redis: Redis) -> None:
    claim(redis, 30)
    finish(redis, 4000)
    assert 30 <= (rate.interval_s("m", 8) or 0) < 60


def test_without_workers_the_claims_tell(rate: DrainRate, redis: Redis) -> None:
    for ago_s in (8, 6, 4, 2):
        claim(redis, ago_s)
    finish(redis, 4000)
    assert rate.interval_s("m", 0) == pytest.approx(2, abs=0.5)


def test_only_the_latest_count_and_what_can_not_be_read_is_left_out(rate: DrainRate, redis: Redis) -> None:
    finish(redis, 80_000)
    for _ in range(NUM_LATEST - 2):
        finish(redis, 8000)
    redis.lpush(redis_names.RECENT, '{"v":99}')
    redis.lpush(redis_names.RECENT, json.dumps({"id": "r", "model": "m", "end": {"state": "cancelled"}}))
    assert rate.interval_s("m", 4) == pytest.approx(2)
