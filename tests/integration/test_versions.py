"""Releases side by side: this one leaves requests that it can't serve to others, and reads what it can."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

from tasks.contract import redis_names, tolerant
from tasks.contract.messages import ErrorCode, Event, State
from tasks.contract.status import Child
from tasks.contract.versions import UnsupportedVersionError
from tasks.queue.submit import RequestQueue
from tasks.store import last_words
from tasks.store.registry import LAST_RELEASE_FIELDS, Registry, ServedModel
from tasks.store.requests import RequestStore
from tasks.store.status_reader import StatusReader
from tasks.worker.attempt_store import AttemptStore
from tests.event_json import event_json
from tests.integration.http_rig import MODEL, Api, ScriptedWorker
from tests.integration.life import MAX_ATTEMPTS, Life
from tests.integration.rig import QUEUE, worker
from tests.newer import NEWER, REASON, NewerRequest, WiderChild, WiderEnd, WiderRequest
from tests.official import client as official_client
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

CHILD = Child("w/1", "w", 1, "m", 512, 4, work={"steps": 3})


@pytest.fixture
def life(redis: Redis) -> Life:
    return Life(redis)


def accept_newer(life: Life, request_id: str, **fields: Any) -> None:
    life.accept(request_id, kind=NewerRequest, **fields)


# ---- requests -----------------------------------------------------------------------------------


def test_request_says_its_version_in_record_and_message(redis: Redis) -> None:
    queue = RequestQueue(RequestStore(redis), 10)
    for request in (WiderRequest("one", "m", prompt="x"), NewerRequest("other", "m", prompt="x")):
        queue.submit(request, "", 60.0)
    texts = cast("list[bytes]", redis.lrange("inference.m", 0, -1))
    assert [json.loads(text)["headers"]["v"] for text in reversed(texts)] == [1, NEWER]
    assert [redis.hget(redis_names.record(name), "v") for name in ("one", "other")] == [b"1", b"99"]


def test_field_that_may_be_dropped_is(life: Life) -> None:
    life.accept("r", kind=WiderRequest)
    assert life.record("r").request.prompt == "x"
    _, claim = life.run_next()
    assert claim.request.prompt == "x"


def test_newer_request_is_passed_over_and_keeps_its_place(life: Life) -> None:
    life.accept("a")
    accept_newer(life, "b")
    life.accept("c", "d")
    taken = [life.take(known=1) for _ in range(4)]
    assert [each.id for each in taken if each] == ["a", "c", "d"]
    assert life.waiting() == ["b"]
    assert life.reserved() == ["a", "c", "d"]
    life.redis.delete("inference:bell:inference.m")
    assert life.take(known=1) is None
    assert not life.redis.exists("inference:bell:inference.m")  # a worker that found nothing wakes no other
    found = life.take(known=NEWER)
    assert found is not None
    assert found.id == "b"


def test_newer_request_is_not_claimed_and_nothing_counts(life: Life, redis: Redis) -> None:
    accept_newer(life, "r")
    taken = life.take()
    for _ in range(3 * MAX_ATTEMPTS):
        assert taken is not None
        with pytest.raises(UnsupportedVersionError, match="request r has format version 99"):
            life.claim("r")
        life.put_back(taken)
        taken = life.take()
    assert (life.record("r").attempt, life.store.deaths("r"), life.state("r")) == (0, 0, State.QUEUED)
    assert not redis.exists(redis_names.claims("m"), redis_names.RUNNING)
    claim = AttemptStore(redis, known=NEWER).claim("r", "newer child", MAX_ATTEMPTS)
    assert claim is not None
    assert claim.number == 1


def test_newer_request_can_be_cancelled(life: Life) -> None:
    accept_newer(life, "r")
    life.take(known=1)
    assert life.store.cancel("r") is State.QUEUED
    assert life.state("r") is State.CANCELLED
    assert life.waiting() == []


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"timeout_s": 0.0}, ErrorCode.REQUEST_TIMEOUT),
        ({"queue_timeout_s": 0.0}, ErrorCode.QUEUE_TIMEOUT),
    ],
)
def test_newer_request_has_its_time_limits(life: Life, limits: dict[str, float], code: ErrorCode) -> None:
    accept_newer(life, "r", **limits)
    life.take(known=1)
    assert life.store.expire_due() == 1
    error = life.end("r").error
    assert error is not None
    assert error.code is code
    assert life.waiting() == []


def test_janitor_leaves_a_newer_request_where_it_waits(life: Life) -> None:
    accept_newer(life, "r")
    life.take(known=1)
    assert life.janitor.tidy() == []


def test_older_workers_go_on_beside_it_and_a_newer_one_takes_it(
    valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    logs = tmp_path / "older", tmp_path / "newer"
    with worker(valkey_url, redis, logs[0], "-n", "older@%h") as older:
        for name, version in (("a", 1), ("late", NEWER), ("b", 1)):
            older.app.send_task("say", args=[name], task_id=name, queue=QUEUE, headers={"v": version})
        wait_until(older.is_done("a", "b"))
        older.app.send_task("say", args=["c"], task_id="c", queue=QUEUE)
        wait_until(older.is_done("a", "b", "c"))
        assert redis.llen(QUEUE) == 1
        with worker(valkey_url, redis, logs[1], "-n", "newer@%h", TEST_KNOWN_VERSION=str(NEWER)) as newer:
            wait_until(newer.is_done("a", "b", "c", "late"))
    told = [line for line in logs[0].read_text().splitlines() if "format version" in line]
    assert len(told) == 1
    assert "late has format version 99, and this worker knows versions up to 1" in told[0]


# ---- registrations ------------------------------------------------------------------------------


def test_child_that_says_more_is_listed(redis: Redis) -> None:
    registry = Registry(redis)
    registry.announce(WiderChild(**{name: getattr(CHILD, name) for name in LAST_RELEASE_FIELDS}))
    assert registry.children() == [CHILD]
    assert StatusReader(redis, 8).read().children == (CHILD,)


def test_last_release_finds_what_it_can_read_and_no_more(redis: Redis) -> None:
    Registry(redis).announce(WiderChild("w/2", "w", 2, "m", 512, 4))
    kept = json.loads(cast("bytes", redis.get(redis_names.child("w/2"))))
    assert set(kept) == set(LAST_RELEASE_FIELDS)
    Registry(redis).withdraw("w/2")
    assert not redis.exists(redis_names.child("w/2"), redis_names.heartbeat("w/2"))


def test_last_releases_child_is_listed(redis: Redis) -> None:
    registry = Registry(redis)
    registry.announce(CHILD)
    redis.delete(redis_names.heartbeat(CHILD.id))
    assert registry.children() == [CHILD]
    assert StatusReader(redis, 8).read().children == (CHILD,)


def test_child_of_a_newer_format_is_left_out_with_one_warning(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    tolerant.warn_once.cache_clear()
    registry = Registry(redis)
    registry.announce(CHILD)
    registry.announce(Child("w/9", "w", 9, "m", 512, 4))
    redis.set(redis_names.heartbeat("w/9"), json.dumps({"id": "w/9", "v": NEWER}))
    redis.hset(redis_names.MODELS, "n", json.dumps({"name": "n", "v": NEWER}))
    registry.add_model(ServedModel("m", 512, 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert registry.children() == [CHILD]
            assert list(registry.models()) == ["m"]
            status = StatusReader(redis, 8).read()
            assert status.children == (CHILD,)
            assert [model.id for model in status.models] == ["m"]
    told = sorted(text for text in caplog.messages if "format version 99" in text)
    assert [text.partition(" has format")[0] for text in told] == [
        "Leaving out a child: The child w/9",
        "Leaving out a model: The model n",
    ]


def test_finished_request_of_a_newer_format_is_left_out(life: Life, redis: Redis) -> None:
    life.accept("r")
    life.store.cancel("r")
    redis.lpush(redis_names.RECENT, json.dumps({"v": NEWER, "id": "later"}))
    assert [each.id for each in StatusReader(redis, 8).read().recent] == ["r"]


# ---- over HTTP ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripted(valkey_url: str) -> Iterator[ScriptedWorker]:
    with Redis.from_url(valkey_url) as client:
        client.flushall()
    made = ScriptedWorker(valkey_url)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def api(valkey_url: str, scripted: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, first_event_timeout=60)
    served.wait_ready()
    yield served
    served.stop()


def say_newer(client: Redis, request_id: str, seq: int, version: int | None) -> None:
    """Write an event with an unknown field, as a worker of a later release might."""
    event = {"s": seq, "t": "more", "k": [5], "mood": "calm"} | ({} if version is None else {"v": version})
    client.xadd(redis_names.log(request_id), {"e": json.dumps(event)}, id=f"{seq}-0")
    client.hset(redis_names.record(request_id), "seq", seq)
    watch = cast("bytes", client.hget(redis_names.record(request_id), "watch"))
    client.publish(watch.decode(), json.dumps([[request_id, event, "and more"]]))


def stream(api: Api, scripted: ScriptedWorker, client: Redis, version: int | None) -> tuple[int, list[str]]:
    """The status and the lines of a stream whose second event is of ``version``."""
    body = {"prompt": "hold", "stream": True}
    known = set(scripted.held)
    with api.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        found = [next(lines)]
        [request_id] = wait_until(lambda: set(scripted.held) - known)
        say_newer(client, request_id, 2, version)
        claim, _ = scripted.held[request_id]
        scripted.held[request_id] = claim, 2
        if version is None:
            scripted.finish(request_id, 2)
        return response.status_code, [*found, *lines]


def test_stream_takes_events_with_unknown_fields(valkey_url: str, api: Api, scripted: ScriptedWorker) -> None:
    with Redis.from_url(valkey_url) as client:
        status, lines = stream(api, scripted, client, None)
    assert (status, lines[-2]) == (200, "data: [DONE]")
    assert any('"more"' in line for line in lines)


def test_stream_goes_on_after_what_can_not_be_read(
    valkey_url: str, api: Api, scripted: ScriptedWorker
) -> None:
    known = set(scripted.held)
    asked = api.later(api.complete, "hold")
    [request_id] = wait_until(lambda: set(scripted.held) - known)
    with Redis.from_url(valkey_url) as client:
        watch = cast("bytes", client.hget(redis_names.record(request_id), "watch")).decode()
        for text in ("no JSON", "[[1]]", "5", json.dumps([[request_id, "no event"]])):
            client.publish(watch, text)
    scripted.say(request_id, "two")
    scripted.finish(request_id, 2)
    assert asked.result(timeout=30).json()["choices"][0]["text"] == "onetwo"


def test_stream_ends_with_an_error_at_an_event_of_a_newer_format(
    valkey_url: str, api: Api, scripted: ScriptedWorker
) -> None:
    with Redis.from_url(valkey_url) as client:
        status, lines = stream(api, scripted, client, NEWER)
    error = json.loads([line for line in lines if line][-1].removeprefix("data: "))["error"]
    assert (status, error["code"]) == (200, "unsupported_version")
    assert "format version 99" in error["message"]


def test_answer_with_an_event_of_a_newer_format_is_503(
    valkey_url: str, api: Api, scripted: ScriptedWorker
) -> None:
    known = set(scripted.held)
    asked = api.later(api.complete, "hold")
    [request_id] = wait_until(lambda: set(scripted.held) - known)
    with Redis.from_url(valkey_url) as client:
        say_newer(client, request_id, 2, NEWER)
    answer = asked.result(timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unsupported_version")
    assert "Retry-After" in answer.headers


def test_end_with_a_new_reason_and_more_fields_is_seen_by_all(
    valkey_url: str, api: Api, scripted: ScriptedWorker
) -> None:
    """A stream, a whole answer, a poll, a replay, the status, the metrics: none of them fails."""
    others = set(scripted.held)
    ways = (api.later(read_official, api.url), api.later(api.complete, "hold"))
    polled = api.submit("hold")
    wait_until(lambda: len(set(scripted.held) - others) == 3)
    known = set(scripted.held) - others
    for request_id in known:
        assert scripted.finish(request_id, end=WiderEnd())
    reasons, whole = (each.result(timeout=30) for each in ways)
    assert reasons[-1] == REASON
    answer = api.http.get(f"/v1/requests/{polled}", headers={"Prefer": "wait=30"}).json()
    for body in (whole.json(), answer["response"]):
        assert body["choices"][0]["finish_reason"] == REASON
        assert (body["usage"]["completion_tokens"], body["timings"]["prompt_n"]) == (1, 5)
    replay = api.http.get(f"/v1/requests/{polled}/events").text
    assert f'"finish_reason":"{REASON}"' in replay
    assert replay.endswith("data: [DONE]\n\n")
    status = api.http.get("/v1/status").json()
    assert known <= {each["id"] for each in status["recent"] if each["state"] == "succeeded"}
    assert (api.status("/readyz"), api.status("/metrics")) == (200, 200)
    with Redis.from_url(valkey_url) as client:
        wait_until(lambda: not client.exists(redis_names.OUTCOMES))


def read_official(url: str) -> list[str | None]:
    """The reasons to end in the chunks of a stream, as OpenAI's client reads them."""
    messages: Any = [{"role": "user", "content": "hold"}]
    chunks = official_client(url).chat.completions.create(model=MODEL, messages=messages, stream=True)
    return [choice.finish_reason for chunk in chunks for choice in chunk.choices]


def test_child_with_more_fields_is_seen_by_all(valkey_url: str, api: Api) -> None:
    with Redis.from_url(valkey_url) as client:
        Registry(client).announce(WiderChild("wider/1", "wider", 1, MODEL, 512, 4))
        wait_until(lambda: 'worker="wider"' in api.http.get("/metrics").text)
        status = api.http.get("/v1/status").json()
        assert "wider/1" in {each["id"] for each in status["children"]}
        assert {api.status(path) for path in ("/readyz", "/v1/models", "/metrics")} == {200}
        Registry(client).withdraw("wider/1")


def test_request_with_more_fields_is_answered(valkey_url: str, api: Api) -> None:
    with Redis.from_url(valkey_url) as client:
        wider = WiderRequest("wider", MODEL, prompt="a b c")
        RequestQueue(RequestStore(client), 10).submit(wider, "", 60.0)
    told = api.http.get("/v1/requests/wider", headers={"Prefer": "wait=30"}).json()
    assert told["response"]["choices"][0]["text"] == "abc"


def test_newer_request_is_polled_and_cancelled(valkey_url: str, api: Api, scripted: ScriptedWorker) -> None:
    with scripted.paused(), Redis.from_url(valkey_url) as client:
        RequestQueue(RequestStore(client), 10).submit(NewerRequest("later", MODEL, prompt="x"), "", 60.0)
        assert api.http.get("/v1/requests/later").json()["status"] == "queued"
        answer = api.http.delete("/v1/requests/later")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert answer.json()["error"]["code"] == "unsupported_version"
        assert scripted.num_waiting == 0
        assert api.status("/v1/status") == 200


def test_what_this_release_writes_the_last_one_reads() -> None:
    assert "v" not in json.loads(event_json(Event(1, "t", (1,))))


def test_last_words_of_a_newer_release_are_read_or_left_out(redis: Redis) -> None:
    for name, extra in (("a@h", {"new": 1}), ("b@h", {"v": 99})):
        text = json.dumps({"worker": name, "model": "m", "text": "why", **extra})
        redis.set(redis_names.last_words(name), text, ex=60)
        redis.zadd(redis_names.LAST_WORDS, {name: 1.0})
    assert [(words.worker, words.text) for words in last_words.read(redis)] == [("a@h", "why")]
    last_words.forget(redis, "m")
    assert [words.worker for words in last_words.read(redis)] == []
