"""What is kept of finished requests: no prompt, and no more bytes than the bound."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from redis import Redis

from service.supervisor.programs import valkey
from tasks.contract import redis_names
from tasks.contract.messages import ChatMessage, End, ErrorCode, Failure, State
from tasks.queue.submit import Key
from tasks.store.foreign_keys import foreign_keys
from tasks.store.registry import Registry, ServedModel
from tests.integration.http_rig import Api
from tests.integration.life import MAX_ATTEMPTS, SUCCEEDED, Life
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

MIB = 1 << 20
PROMPT = "x" * MIB


@pytest.fixture
def life(redis: Redis) -> Life:
    return Life(redis)


def succeed(life: Life, request_id: str) -> None:
    taken, claim = life.run(request_id, prompt=PROMPT)
    life.append(claim, 1)
    life.append(claim, 2, SUCCEEDED)
    life.acknowledge(taken)


def fail(life: Life, request_id: str) -> None:
    taken, claim = life.run(request_id, prompt=PROMPT)
    failure = Failure(ErrorCode.INVALID_PROMPT, f"This is no prompt: {PROMPT}", "prompt")
    life.append(claim, 1, End(State.FAILED, error=failure))
    life.acknowledge(taken)


def cancel(life: Life, request_id: str) -> None:
    life.accept(request_id, prompt=None, messages=(ChatMessage("user", PROMPT),))
    life.store.cancel(request_id)


def cancel_running(life: Life, request_id: str) -> None:
    taken, _ = life.run(request_id, prompt=PROMPT)
    life.store.cancel(request_id)
    life.acknowledge(taken)


def wait_too_long(life: Life, request_id: str) -> None:
    life.accept(request_id, prompt=PROMPT, queue_timeout_s=0.0)
    life.store.expire_due()


def wait_too_long_until_claimed(life: Life, request_id: str) -> None:
    life.accept(request_id, prompt=PROMPT, queue_timeout_s=0.0)
    taken = life.take()
    assert taken is not None
    assert life.claim(request_id) is None
    life.acknowledge(taken)


def take_too_long(life: Life, request_id: str) -> None:
    life.accept(request_id, prompt=PROMPT, stop=("x" * 200,) * 16, timeout_s=0.0)
    life.store.expire_due()


def die_too_often(life: Life, request_id: str) -> None:
    life.accept(request_id, prompt=PROMPT)
    for _ in range(MAX_ATTEMPTS):
        taken = life.take()
        assert taken is not None
        life.claim(request_id)
        life.put_back(taken)
    taken = life.take()
    assert taken is not None
    assert life.claim(request_id) is None
    life.acknowledge(taken)


ENDS: dict[str, tuple[Callable[[Life, str], None], State]] = {
    "succeed": (succeed, State.SUCCEEDED),
    "fail": (fail, State.FAILED),
    "cancel": (cancel, State.CANCELLED),
    "cancel_running": (cancel_running, State.CANCELLED),
    "wait_too_long": (wait_too_long, State.EXPIRED),
    "wait_too_long_until_claimed": (wait_too_long_until_claimed, State.EXPIRED),
    "take_too_long": (take_too_long, State.FAILED),
    "die_too_often": (die_too_often, State.FAILED),
}


def used(redis: Redis) -> int:
    """Bytes of all keys."""
    keys = cast("list[bytes]", redis.keys("*"))
    return sum(int(redis.memory_usage(key, samples=0) or 0) for key in keys)


@pytest.mark.parametrize("how", ENDS)
def test_a_finished_request_keeps_no_prompt(how: str, life: Life, redis: Redis) -> None:
    end, state = ENDS[how]
    before = used(redis)
    for n in range(3):
        end(life, f"r{n}")
    assert {life.state(f"r{n}") for n in range(3)} == {state}
    assert (used(redis) - before) / 3 < 20_000
    record = life.record("r0")
    assert record.request.id == "r0"
    assert (record.request.messages is not None) == (how == "cancel")  # an answer needs to know
    assert life.end("r0").state is state


def test_a_requests_prompt_is_kept_for_its_next_attempt(life: Life) -> None:
    taken, claim = life.run("r", prompt=PROMPT)
    life.append(claim, 1)
    life.put_back(taken)
    _, claim = life.run_next()
    assert claim.request.prompt == PROMPT


# ---- all of them together -----------------------------------------------------------------------


def estimate(redis: Redis) -> int:
    return int(cast("bytes", redis.get(redis_names.RESULTS_BYTES)))


def answer(life: Life, request_id: str, num_events: int, key: Key | None = None) -> None:
    taken, claim = life.run(request_id, key=key)
    for seq in range(1, num_events):
        life.append(claim, seq)
    life.append(claim, num_events, SUCCEEDED)
    life.acknowledge(taken)


@pytest.mark.parametrize("num_events", [1, 30, 1000])
def test_bytes_are_counted_as_redis_counts_them(num_events: int, life: Life, redis: Redis) -> None:
    for n in range(5):
        answer(life, f"r{n}", num_events)
    names = [name(f"r{n}") for n in range(5) for name in (redis_names.record, redis_names.log)]
    true = sum(int(redis.memory_usage(name, samples=0) or 0) for name in names)
    assert true < estimate(redis) < 2 * true


def test_the_oldest_go_first(life: Life, redis: Redis) -> None:
    for n in range(10):
        answer(life, f"r{n}", 10, Key(f"digest{n}", "print"))
    most = estimate(redis) // 2
    assert life.store.forget_oldest(most) == 5
    assert [life.store.fetch(f"r{n}") is not None for n in range(10)] == [False] * 5 + [True] * 5
    assert not life.store.read_log("r4")
    assert [redis.exists(redis_names.named(f"digest{n}")) for n in (4, 5)] == [0, 1]
    assert estimate(redis) <= most
    assert life.store.forget_oldest(most) == 0


def test_those_whose_time_is_over_do_not_count(life: Life, redis: Redis) -> None:
    for n in range(4):
        answer(life, f"r{n}", 1)
    redis.delete(redis_names.record("r0"), redis_names.record("r1"))
    assert life.store.forget_oldest(1 << 30) == 0
    assert redis.llen(redis_names.RESULTS) == 2
    assert life.store.forget_oldest(0) == 2
    assert estimate(redis) == 0


def test_what_is_not_over_is_never_forgotten(life: Life) -> None:
    life.accept("waits")
    assert life.store.forget_oldest(0) == 0
    assert life.state("waits") is State.QUEUED


def test_an_api_process_keeps_the_bound(life: Life, redis: Redis, valkey_url: str, tmp_path: Path) -> None:
    """A client that posts as much as it may, again and again."""
    bound = 1 << 20
    Registry(redis).add_model(ServedModel("m", 4096, 1))
    redis.config_set("maxmemory-policy", "allkeys-lru")
    log = tmp_path / "api.log"
    api = Api(valkey_url, log, result_bytes=bound, max_body_bytes=2 * MIB)
    try:
        wait_until(lambda: api.status("/healthz") == 200, timeout=30)
        for _ in range(301):
            request_id = api.submit(PROMPT)
            api.http.delete(f"/v1/requests/{request_id}").raise_for_status()
        wait_until(lambda: estimate(redis) <= bound)
        assert used(redis) < 2 * bound
        assert "forgotten before their --result-ttl" in log.read_text()
        assert "CONFIG SET maxmemory-policy noeviction" in log.read_text()
        told = re.search(r"\ninference_result_bytes (\S+)\n", api.http.get("/metrics").text)
        assert told is not None
        assert float(told[1]) == estimate(redis)
        assert api.status(f"/v1/requests/{request_id}") == 200
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
        api.stop()


def test_the_embedded_one_is_bounded_and_evicts_nothing(tmp_path: Path) -> None:
    conf, place = valkey.configure(tmp_path, valkey.memory_limit(700))
    url = valkey.url_of(place)
    with subprocess.Popen([str(valkey.binary()), str(conf)], stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(valkey.answers(url))
            with Redis.from_url(url, decode_responses=True) as client:
                told = client.config_get("maxmemory*")
        finally:
            server.kill()
    assert told["maxmemory"] == str(700 << 20)
    assert told["maxmemory-policy"] == "noeviction"
    assert 512 << 20 <= valkey.memory_limit() <= 4 << 30


def test_every_key_has_the_type_that_is_expected(life: Life, redis: Redis) -> None:
    succeed(life, "r")
    answer(life, "s", 2, Key("digest", "print"))
    life.accept("waits")
    assert foreign_keys(redis) == []
    redis.delete(redis_names.record("r"))
    redis.set(redis_names.record("r"), "of somebody else")
    assert life.store.forget_oldest(0) == 2
