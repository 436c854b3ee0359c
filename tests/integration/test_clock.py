"""Redis's clock is set, or stands still: that is no time in which a request waited or a worker was silent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from service.supervisor.programs import valkey
from tasks.contract import redis_names
from tasks.contract.messages import State
from tasks.store.drain_rate import DrainRate
from tests.integration.life import MODEL, SUCCEEDED, Life
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

HOUR_S = 3600.0
#: Where libfaketime may be (Debian: apt-get install libfaketime); the variable names another place.
LIBRARIES = [
    Path(os.environ.get("LIBFAKETIME", "")),
    *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/faketime/libfaketimeMT.so.1"),
]


@dataclass
class Clock:
    """A Valkey whose clock can be set."""

    redis: Redis
    shift: Path

    def set(self, seconds: float) -> None:
        """Set the clock forward (or back), seen from where it is now."""
        before = self.redis.time()[0]
        self.shift.write_text(f"{float(self.shift.read_text()) + seconds:+.0f}")
        wait_until(lambda: abs(self.redis.time()[0] - before - seconds) < 30)


@pytest.fixture(params=["set", "pretended"])
def clock(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clock | Pretended]:
    """A clock that is set for real, where libfaketime is there; and one of which the past is moved."""
    if request.param == "pretended":
        redis: Redis = request.getfixturevalue("redis")
        yield Pretended(redis)
        return
    library = next((path for path in LIBRARIES if path.is_file()), None)
    if library is None:
        pytest.skip("needs libfaketime (Debian: apt-get install libfaketime, or set LIBFAKETIME to its file)")
    shift, port = tmp_path / "shift", free_port()
    shift.write_text("+0")
    env = os.environ | {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(shift),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    command = [str(valkey.binary()), "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            with Redis(port=port) as redis:
                wait_until(lambda: answers(redis))
                yield Clock(redis, shift)
        finally:
            process.kill()


def answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisConnectionError:
        return False


@dataclass
class Pretended:
    """Moves all times that are kept, so that the clock seems to be set; Valkey's own times to live stay."""

    redis: Redis

    def set(self, seconds: float) -> None:
        self.set_record(seconds)
        for index in (redis_names.ACTIVE, redis_names.LEASES, redis_names.RUNNING):
            for member, _ in self.redis.zscan_iter(index):
                self.redis.zincrby(index, -seconds, member)

    def set_record(self, seconds: float) -> None:
        """Only records and deadlines."""
        for request_id in self.redis.zrange(redis_names.ACTIVE, 0, -1):
            assert isinstance(request_id, bytes)
            name = redis_names.record(request_id.decode())
            for field in ("created", "claimed", "first"):
                if self.redis.hexists(name, field):
                    self.redis.hincrbyfloat(name, field, -seconds)
        for member, _ in self.redis.zscan_iter(redis_names.DEADLINES):
            self.redis.zincrby(redis_names.DEADLINES, -seconds, member)
        self.redis.incrbyfloat(redis_names.CLOCK, -seconds)


@pytest.fixture
def life(clock: Clock | Pretended) -> Life:
    return Life(clock.redis)


def deadline(life: Life, request_id: str) -> float:
    """Seconds until a request's deadline."""
    score, (seconds, micros) = life.redis.zscore(redis_names.DEADLINES, request_id), life.redis.time()
    assert isinstance(score, float)
    return score - seconds - micros / 1e6


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_what_waits_goes_on_waiting(seconds: float, life: Life, clock: Clock | Pretended) -> None:
    life.accept("r", queue_timeout_s=60.0)
    life.accept("limited", queue_timeout_s=60.0, timeout_s=50.0)
    clock.set(seconds)
    assert life.store.expire_due() == 0
    assert 0 < deadline(life, "r") <= 60
    assert 0 < deadline(life, "limited") <= 50
    _, claim = life.run_next()
    assert 0 <= claim.queue_ms <= 60_000
    assert 0 <= claim.age_ms <= 60_000
    assert life.store.expire_due() == 0


def test_claimed_first_of_all(life: Life, clock: Clock | Pretended) -> None:
    """A worker asks before anything else has noticed."""
    life.accept("r", queue_timeout_s=60.0)
    clock.set(HOUR_S)
    _, claim = life.run_next()
    assert claim.queue_ms <= 60_000


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_what_runs_keeps_its_lease_and_its_time(seconds: float, life: Life, clock: Clock | Pretended) -> None:
    taken, claim = life.run("r", timeout_s=500.0)
    clock.set(seconds)
    assert life.put_back(taken, lease=10.0) == -1
    assert life.store.expire_due() == 0
    assert 0 < deadline(life, "r") <= 501
    assert life.append(claim, 1)
    assert life.append(claim, 2, SUCCEEDED)
    assert life.state("r") is State.SUCCEEDED


def test_a_lease_that_nobody_renews_ends_after_all(life: Life, clock: Clock | Pretended) -> None:
    """Also when the clock was set back by an hour."""
    taken, _ = life.run("r")
    clock.set(-HOUR_S)
    assert life.put_back(taken, lease=10.0) == -1
    score, now = life.redis.zscore(redis_names.LEASES, taken.tag), life.redis.time()[0]
    assert isinstance(score, float)
    assert now - 30 < score <= now + 1


def test_a_deadline_still_ends(life: Life, clock: Clock | Pretended) -> None:
    life.accept("r", queue_timeout_s=0.0)
    clock.set(HOUR_S)
    assert life.store.expire_due() == 1


def test_the_drain_rate_forgets_the_time_before(life: Life, clock: Clock | Pretended) -> None:
    life.redis.hset(redis_names.MODELS, MODEL, "{}")
    life.run("r")
    clock.set(HOUR_S)
    life.store.expire_due()
    rate = DrainRate(life.redis)
    assert rate.interval_s(MODEL, 1) is None
    life.run("s")
    interval = rate.interval_s(MODEL, 1)
    assert interval is not None
    assert interval < 60


def test_what_came_while_nobody_looked_is_not_of_the_future(redis: Redis) -> None:
    """The last look is long ago, since processes of the last release don't note it."""
    life = Life(redis)
    taken, _ = life.run("r", timeout_s=500.0)
    life.accept("waits", queue_timeout_s=60.0)
    redis.incrbyfloat(redis_names.CLOCK, -100_000)
    assert life.store.expire_due() == 0
    assert 0 < deadline(life, "waits") <= 60
    assert 0 < deadline(life, "r") <= 501
    assert float(redis.zscore(redis_names.LEASES, taken.tag) or 0) <= redis.time()[0] + 1


def test_a_key_of_another_type_hinders_nothing_else(redis: Redis) -> None:
    life = Life(redis)
    life.accept("r", queue_timeout_s=60.0)
    redis.set(redis_names.LEASES, "of somebody else")
    redis.set(redis_names.MODELS, "of somebody else")
    Pretended(redis).set_record(HOUR_S)
    assert life.store.expire_due() == 0
    assert 0 < deadline(life, "r") <= 60
