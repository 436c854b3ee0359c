"""The real model over HTTP, through the real queue, with the clients people use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.serving import Served
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ASK = {"messages": [{"role": "user", "content": "Explain what a mutex is."}], "temperature": 0}
COLOURS = (
    "red", "green", "blue", "black", "white", "gold", "pink", "grey",
    "cyan", "lime", "navy", "teal", "plum", "rust", "sand", "jade",
)  # fmt: skip
LONG = {**ASK, "max_tokens": 1500, "ignore_eos": True}


@pytest.fixture(scope="module")
def http(service: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(service: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def metric(http: httpx.Client, name: str) -> float:
    """The sum of a metric's samples."""
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}(\{{|\s)", line))


def requests_when_idle(http: httpx.Client) -> float:
    """The number of finished requests, once all have finished."""
    wait_until(
        lambda: metric(http, "inference_requests_running") == metric(http, "inference_requests_waiting") == 0
    )
    return metric(http, "inference_requests_total")


def model_of(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


# ---- OpenAI's own client ----------------------------------------------------------------------------


def test_the_openai_client_gets_an_answer(client):
    answer = client.chat.completions.create(
        model=model_of(client), messages=ASK["messages"], max_tokens=24, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


def test_the_openai_client_streams_the_same_answer(client):
    options = {"model": model_of(client), "messages": ASK["messages"], "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 24


def test_completions_go_on_from_the_prompt(client):
    answer = client.completions.create(
        model=model_of(client),
        prompt="1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
        max_tokens=8,
        temperature=0,
        stop=["13"],
    )
    assert answer.choices[0].text.strip() == "12,"
    assert answer.choices[0].finish_reason == "stop"


def test_every_sampling_setting_is_taken(http):
    body = {
        **ASK,
        "max_completion_tokens": 8,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.02,
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repeat_penalty": 1.1,
        "ignore_eos": True,
    }
    first, second = (http.post("/v1/chat/completions", json=body).json() for _ in range(2))
    assert first["usage"]["completion_tokens"] == 8
    assert first["choices"] == second["choices"]


def test_sixteen_at_once_each_get_their_own_text(http):

    def ask(word: str) -> str:
        prompt = f"My colour is {word}. " * 4 + "My colour is"
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
        return str(http.post("/v1/completions", json=body).json()["choices"][0]["text"])

    with ThreadPoolExecutor(16) as pool:
        texts = dict(zip(COLOURS, pool.map(ask, COLOURS), strict=True))
    assert {word: text.partition(".")[0].strip() for word, text in texts.items()} == {w: w for w in COLOURS}


def test_a_finished_request_carries_its_timings(http):
    answer = http.post("/v1/chat/completions", json={**ASK, "max_tokens": 8}).json()
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == answer["usage"]["prompt_tokens"]
    assert timings["predicted_n"] == 8
    assert timings["attempts"] == 1
    assert 0 < timings["queue_ms"] < timings["ttft_ms"]
    assert all(timings[name] > 0 for name in ("prompt_ms", "predicted_ms", "predicted_per_second", "itl_ms"))


def test_a_system_prompt_shared_by_sixteen_at_once_is_computed_once(http):
    system = {"role": "system", "content": "You answer briefly and in plain words. " * 64}
    count = requests_when_idle(http)
    before = metric(http, "inference_prompt_tokens_total") - metric(http, "inference_reused_tokens_total")

    def ask(number: int) -> dict[str, Any]:
        messages = [system, {"role": "user", "content": f"What is {number} plus {number}?"}]
        return http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2}).json()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    prompt_tokens = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert prompt_tokens > 16 * 500
    reused = sum(answer["timings"]["cache_n"] for answer in answers)
    wait_until(lambda: metric(http, "inference_requests_total") == count + 16)
    after = metric(http, "inference_prompt_tokens_total") - metric(http, "inference_reused_tokens_total")
    assert after - before == prompt_tokens - reused
    assert after - before < 2 * 500


def test_a_conversations_next_turn_finds_the_child_that_has_it(start_service):
    served = start_service("--workers", "2", "--slots", "2", name="two").wait_ready()
    with httpx.Client(base_url=served.url, timeout=60) as client:
        running = send(client)
        wait_until(lambda: client.get(running).json()["status"] == "running")
        turns = [
            {"role": "system", "content": "Be brief. " * 30},
            {"role": "user", "content": "Name a colour."},
        ]
        first = client.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 8}).json()
        client.delete(running)
        wait_until(lambda: metric(client, "inference_requests_running") == 0)
        turns += [first["choices"][0]["message"], {"role": "user", "content": "Another."}]
        second = client.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 8}).json()
    assert second["timings"]["cache_n"] >= first["usage"]["prompt_tokens"] - 1
    assert served.end() == 0


# ---- asynchronous requests ----------------------------------------------------------------------------


def test_an_asynchronous_request_is_polled_and_its_events_replayed(http):
    sent = http.post(
        "/v1/chat/completions", json={**ASK, "max_tokens": 12}, headers={"Prefer": "respond-async"}
    )
    assert sent.status_code == 202
    place = sent.headers["Location"]
    done = http.get(place, headers={"Prefer": "wait=30"}).json()
    assert done["status"] == "succeeded"
    with http.stream("GET", f"{place}/events") as events:
        replay = events.read().decode()
    ids = [int(seen) for seen in re.findall(r"^id: (\d+)", replay, re.MULTILINE)]
    assert ids == sorted(ids)
    assert replay.rstrip().endswith("data: [DONE]")
    with http.stream("GET", f"{place}/events", headers={"Last-Event-ID": str(ids[-1])}) as rest:
        assert "content" not in rest.read().decode().replace('"content":""', "")


def test_a_running_request_is_cancelled(http):
    place = http.post("/v1/chat/completions", json=LONG, headers={"Prefer": "respond-async"}).headers[
        "Location"
    ]
    wait_until(lambda: http.get(place).json()["status"] == "running")
    assert http.delete(place).status_code in (200, 202, 204)
    assert http.get(place).json()["status"] == "cancelled"
    wait_until(lambda: metric(http, "inference_requests_running") == 0)


def test_a_client_that_goes_away_frees_its_slot(http):
    before = requests_when_idle(http)
    with http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as stream:
        next(stream.iter_bytes())
        assert metric(http, "inference_requests_running") == 1
    wait_until(lambda: metric(http, "inference_requests_running") == 0)
    wait_until(lambda: metric(http, "inference_requests_total") == before + 1)


# ---- refused requests ---------------------------------------------------------------------------------


def body(**changes: object) -> bytes:
    return json.dumps({**ASK, "max_tokens": 4, **changes}).encode()


BAD = {
    "not JSON": (b"{", 400, None),
    "not an object": (b"[]", 400, None),
    "wrong type": (body(max_tokens="many"), 400, "max_tokens"),
    "unknown model": (body(model="nobody"), 404, "model"),
    "no messages": (body(messages=[]), 400, "messages"),
    "unknown role": (body(messages=[{"role": "king", "content": "x"}]), 400, "messages"),
    "zero tokens": (body(max_tokens=0), 400, "max_tokens"),
    "negative tokens": (body(max_tokens=-1), 400, "max_tokens"),
    "huge tokens": (body(max_tokens=10**9), 400, "max_tokens"),
    "a prompt longer than the context": (
        body(messages=[{"role": "user", "content": "a b " * 9000}]),
        400,
        "messages",
    ),
    "NaN": (body(temperature=float("nan")), 400, "temperature"),
    "infinity": (body(temperature=float("inf")), 400, "temperature"),
    "10,000 stop strings": (body(stop=["x"] * 10_000), 400, "stop"),
    "a lone surrogate": (body(messages=[{"role": "user", "content": "\ud800"}]), 400, "messages"),
    "a surrogate in a stop string": (body(stop="\udfff"), 400, "stop"),
    "a body over the limit": (body(user="x" * (3 << 20)), 413, None),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("is_stream", [False, True])
def test_bad_input_is_refused_by_name(http, name, is_stream):
    content, status, param = BAD[name]
    if is_stream and content.startswith(b"{" + b'"'):
        content = content.replace(b"{", b'{"stream": true, ', 1)
    answer = http.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert (error["param"] or "").partition(".")[0].partition("[")[0] == (param or "")


def test_a_prompt_too_long_has_openais_code(http):
    answer = http.post("/v1/completions", json={"prompt": "a b " * 9000})
    assert answer.status_code == 400
    error, [model] = answer.json()["error"], http.get("/v1/models").json()["data"]
    assert error["code"] == "context_length_exceeded"
    assert f"maximum context length is {model['meta']['n_ctx']} tokens" in error["message"]


def test_the_service_still_answers_after_all_of_that(http):
    assert http.post("/v1/chat/completions", json={**ASK, "max_tokens": 4}).status_code == 200


# ---- the capped queue ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(model_path, tmp_path_factory) -> Iterator[Served]:
    """One slot, and one place in the queue."""
    served = Served(
        tmp_path_factory.mktemp("narrow"), "--workers", "1", "--slots", "1", "--queue-limit", "1"
    ).wait_ready()
    yield served
    assert served.end() == 0, served.output.read_text()


@pytest.fixture
def full(narrow: Served) -> Iterator[httpx.Client]:
    """A client of a service whose slot and place are taken; both are freed afterwards."""
    with httpx.Client(base_url=narrow.url, timeout=60) as client:
        running = send(client)
        wait_until(lambda: client.get(running).json()["status"] == "running")
        waiting = send(client)
        client.headers["X-Waiting"] = waiting
        yield client
        for place in (waiting, running):
            client.delete(place)
        wait_until(lambda: metric(client, "inference_requests_running") == 0)


def send(client: httpx.Client) -> str:
    """Send a long asynchronous request, and return its address."""
    answer = client.post("/v1/chat/completions", json=LONG, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return answer.headers["Location"]


def test_a_full_queue_refuses_with_a_time_to_come_back(full):
    answer = full.post("/v1/chat/completions", json=ASK)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "queue_full"
    assert int(answer.headers["Retry-After"]) >= 1


def test_cancelling_a_waiting_request_frees_its_place_at_once(full):
    full.delete(full.headers["X-Waiting"])
    assert full.delete(send(full)).status_code < 300


def test_a_request_may_wait_for_a_place(full):
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(
            full.post,
            "/v1/chat/completions",
            json=LONG,
            headers={"Prefer": "wait=30, respond-async"},
        )
        full.delete(full.headers["X-Waiting"])
        answer = patient.result(timeout=40)
    assert answer.status_code == 202
    full.delete(answer.headers["Location"])


def test_waiting_for_a_place_ends_at_its_bound(full):
    assert full.post("/v1/chat/completions", json=ASK, headers={"Prefer": "wait=1"}).status_code == 429


def test_a_request_that_waits_too_long_is_never_generated(start_service):
    served = start_service(
        "--workers", "1", "--slots", "1", "--queue-timeout", "1", name="impatient"
    ).wait_ready()
    with httpx.Client(base_url=served.url, timeout=60) as client:
        running = send(client)
        wait_until(lambda: client.get(running).json()["status"] == "running")
        answer = client.post("/v1/chat/completions", json=ASK)
        assert answer.status_code in (503, 504)
        assert answer.json()["error"]["code"] == "queue_timeout"
        client.delete(running)
    assert served.end() == 0


# ---- the end ------------------------------------------------------------------------------------------


def test_sigterm_lets_an_open_stream_finish(start_service):
    served = start_service(name="draining").wait_ready()
    request = {**ASK, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=served.url, timeout=60) as client,
        client.stream("POST", "/v1/chat/completions", json=request) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        served.process.terminate()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert served.process.wait(60) == 0
