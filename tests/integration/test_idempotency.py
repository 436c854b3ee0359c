"""``Idempotency-Key``: sending a request again is safe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import httpx
import pytest
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import GenerateRequest, State
from tasks.queue.errors import QueueFull
from tasks.queue.submit import Key, KeyReusedError, RequestQueue
from tests.integration.http_rig import Api, ScriptedWorker
from tests.integration.life import Life
from tests.integration.test_http import newly_held, open_post, state, texts
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

LIMIT = 4


@pytest.fixture(scope="module")
def apis(valkey_url: str, worker: ScriptedWorker) -> Iterator[tuple[Api, Api]]:
    """Two API processes, as on two hosts."""
    served = tuple(Api(valkey_url, queue_limit=LIMIT, first_event_timeout=1) for _ in range(2))
    for each in served:
        each.wait_ready()
    yield served[0], served[1]
    for each in served:
        each.stop()


def post(api: Api, key: str, prompt: str, prefer: str = "", **fields: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key, **({"Prefer": prefer} if prefer else {})}
    return api.http.post("/v1/completions", json={"prompt": prompt, **fields}, headers=headers)


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


# ---- over HTTP ----------------------------------------------------------------------------------


def test_finished_request_is_answered_again(apis: tuple[Api, Api]) -> None:
    first, again = (post(api, "finished", "a b") for api in apis)
    assert first.json() == again.json()
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"


def test_finished_stream_is_replayed_from_its_start(apis: tuple[Api, Api]) -> None:
    first, again = (post(api, "stream", "a b c", stream=True) for api in apis)
    assert texts(first.text) == texts(again.text) == ["a", "b", "c"]
    assert again.text.endswith("data: [DONE]\n\n")


def test_running_request_is_joined(apis: tuple[Api, Api], worker: ScriptedWorker) -> None:
    known = set(worker.held)
    answers: list[Future[httpx.Response]] = [apis[0].later(post, apis[0], "running", "hold")]
    request_id = newly_held(worker, known)
    answers.append(apis[1].later(post, apis[1], "running", "hold"))
    wait_until(lambda: len(watchers(worker, request_id)) == 2)
    worker.say(request_id, "two")
    worker.finish(request_id)
    bodies = [answer.result(20).json() for answer in answers]
    assert bodies[0] == bodies[1]
    assert bodies[0]["choices"][0]["text"] == "onetwo"


def watchers(worker: ScriptedWorker, request_id: str) -> list[bytes]:
    found = worker.store.redis.hget(redis_names.record(request_id), "watch")
    assert isinstance(found, bytes)
    return found.split()


def test_asynchronous_request_has_one_location(apis: tuple[Api, Api]) -> None:
    answers = [post(api, "later", "a", "respond-async") for api in apis]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert len({answer.headers["Location"] for answer in answers}) == 1
    # A request without Prefer finds it, too.
    assert post(apis[0], "later", "a").json()["id"] == answers[0].json()["id"]


def test_other_body_under_the_same_key_is_refused(apis: tuple[Api, Api]) -> None:
    assert post(apis[0], "reused", "a").status_code == 200
    answer = post(apis[1], "reused", "b")
    assert (answer.status_code, code_of(answer)) == (422, "idempotency_key_reused")
    assert answer.json()["error"]["param"] == "Idempotency-Key"
    chat = {"messages": [{"role": "user", "content": "a"}]}
    answer = apis[1].http.post("/v1/chat/completions", json=chat, headers={"Idempotency-Key": "reused"})
    assert answer.status_code == 422


def test_what_is_no_key_is_refused(apis: tuple[Api, Api]) -> None:
    answer = post(apis[0], "x" * 256, "a")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


def test_request_with_a_key_outlives_its_connection(apis: tuple[Api, Api], worker: ScriptedWorker) -> None:
    known = set(worker.held)
    sock = open_post(apis[0], head="Idempotency-Key: outlives\r\n", prompt="hold", stream=True)
    request_id = newly_held(worker, known)
    sock.close()
    known.add(request_id)
    bystander = open_post(apis[0], prompt="hold")
    other_id = newly_held(worker, known)
    bystander.close()
    wait_until(lambda: state(worker, other_id) is State.CANCELLED)  # by then the first was checked, too
    assert state(worker, request_id) is State.RUNNING
    worker.finish(request_id)
    assert texts(post(apis[1], "outlives", "hold", stream=True).text) == ["one"]


def test_refused_request_does_not_block_its_key(apis: tuple[Api, Api], worker: ScriptedWorker) -> None:
    with worker.paused():
        for _ in range(LIMIT):
            apis[0].submit("x")
        answer = post(apis[0], "refused", "a")
        assert (answer.status_code, code_of(answer)) == (429, "queue_full")
    assert post(apis[1], "refused", "b", "wait=30").json()["choices"][0]["text"] == "b"


def test_simultaneous_requests_are_generated_once(apis: tuple[Api, Api]) -> None:
    barrier, num = threading.Barrier(12), 12

    def submit(n: int) -> httpx.Response:
        barrier.wait()
        with httpx.Client(base_url=apis[n % 2].url, timeout=30) as client:
            headers = {"Idempotency-Key": "simultaneous", "Prefer": "wait=30"}
            return client.post("/v1/completions", json={"prompt": "a b"}, headers=headers)

    answers = [future.result(30) for future in [apis[0].later(submit, n) for n in range(num)]]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1


# ---- the record ---------------------------------------------------------------------------------

KEY = Key("digest", "fingerprint")
REQUEST = GenerateRequest(id="r", model="m", prompt="x")


@pytest.fixture
def life(redis: Redis) -> Life:
    return Life(redis)


def admit(life: Life, request_id: str, key: Key = KEY) -> str:
    return life.submit(request_id, key=key).id


def test_key_lives_as_long_as_its_record(life: Life, redis: Redis) -> None:
    name = redis_names.named(KEY.digest)
    assert admit(life, "a") == admit(life, "b") == "a"
    assert redis.ttl(name) == -1
    life.store.cancel("a")
    assert 0 < redis.ttl(name) <= redis.ttl(redis_names.record("a"))
    redis.delete(redis_names.record("a"))
    assert admit(life, "c") == "c"


def test_key_stands_for_one_body(life: Life) -> None:
    admit(life, "a")
    with pytest.raises(KeyReusedError):
        admit(life, "b", Key(KEY.digest, "other"))


def test_refused_request_takes_no_key(life: Life) -> None:
    life.accept("first")
    with pytest.raises(QueueFull):
        life.submit("a", cap=1, key=KEY)
    assert admit(life, "b") == "b"


def test_expired_request_frees_its_key(life: Life) -> None:
    admit(life, "b")
    life.redis.hset(redis_names.record("b"), "queue_timeout", 0)
    life.redis.zadd(redis_names.DEADLINES, {"b": 1})
    assert life.store.expire_due() == 1
    assert admit(life, "c") == "c"


def test_end_of_the_old_request_leaves_a_key_to_its_new_one(life: Life, redis: Redis) -> None:
    admit(life, "a")
    redis.delete(redis_names.named(KEY.digest))
    admit(life, "b")
    life.redis.hset(redis_names.record("a"), "queue_timeout", 0)
    life.redis.zadd(redis_names.DEADLINES, {"a": 1})
    assert life.store.expire_due() == 1
    assert admit(life, "c") == "b"


def test_key_is_found_in_a_full_queue(life: Life) -> None:
    queue = RequestQueue(life.store, 1)
    assert queue.submit(replace(REQUEST, id="a"), "", 60.0, KEY).is_new
    admission = queue.submit(REQUEST, "", 60.0, KEY)
    assert (admission.id, admission.is_new) == ("a", False)
    with pytest.raises(QueueFull):
        queue.submit(REQUEST, "", 60.0)
