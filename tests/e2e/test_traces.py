"""Traces and logs of the real service; the tests run the collector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra 'tracing': pip install -e '.[tracing]'")

from tests.collector import Collector, Span
from tests.e2e.serving import Served
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

SECRET = "xyzzy plugh"
SPANS = {"answer", "run/tasks.generate", "queue", "claim", "prefill", "decode"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as started:
        yield started


@pytest.fixture(scope="module")
def traced(
    collector: Collector, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    options = ("--otlp-endpoint", collector.url, "--log-format", "json", "--verbose", "--workers", "1")
    served = Served(tmp_path_factory.mktemp("traced"), *options, OTEL_BSP_SCHEDULE_DELAY="100").wait_ready()
    yield served
    assert served.end() == 0, served.output.read_text()


def complete(served: Served, **fields: Any) -> httpx.Response:
    body = {"prompt": SECRET, "max_tokens": 8, "ignore_eos": True, **fields}
    return httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)


def trace_of(collector: Collector, request_id: str) -> list[Span]:
    """A request's trace, once it is complete."""
    wait_until(lambda: {span.name for span in collector.trace_of(request_id)} >= SPANS)
    return collector.trace_of(request_id)


@pytest.mark.parametrize("is_stream", [True, False])
def test_one_trace_from_http_to_the_last_token(collector: Collector, traced: Served, is_stream: bool):
    answer = complete(traced, stream=is_stream)
    assert answer.status_code == 200
    spans = trace_of(collector, answer.headers["X-Request-Id"])
    by_name = {span.name: span for span in spans}
    assert len({span.trace for span in spans}) == 1
    (http,) = [span for span in spans if not span.parent]
    assert (http.service, http.name) == ("inference-api", "POST /v1/completions")
    task = by_name["run/tasks.generate"]
    assert task.service == "inference-worker"
    parents = {
        "answer": http.id,
        "queue": http.id,
        "run/tasks.generate": http.id,
        "claim": task.id,
        "prefill": task.id,
        "decode": task.id,
    }
    assert {name: by_name[name].parent for name in parents} == parents
    queue, claim, prefill, decode = (by_name[name] for name in ("queue", "claim", "prefill", "decode"))
    assert http.start <= queue.start <= queue.end == claim.end <= prefill.start < prefill.end == decode.start
    assert task.start <= claim.start
    assert decode.start < decode.end <= task.end
    assert decode.end <= by_name["answer"].end
    assert decode.attributes["gen_ai.usage.output_tokens"] == 8
    assert (
        task.attributes["inference.outcome"]
        == by_name["answer"].attributes["inference.outcome"]
        == "succeeded"
    )


def test_redis_is_seen_only_within_requests(collector: Collector, traced: Served):
    spans = trace_of(collector, complete(traced).headers["X-Request-Id"])
    commands = [span for span in spans if span.attributes.get("db.system") == "redis"]
    assert {span.service for span in commands} == {"inference-api", "inference-worker"}
    assert not [span for span in collector.spans if not span.parent and "db.system" in span.attributes]


def test_a_failure_is_one_in_the_trace(collector: Collector, traced: Served):
    answer = complete(traced, prompt="word " * 6000)
    assert answer.status_code == 400
    request_id = answer.headers["X-Request-Id"]
    wait_until(
        lambda: {"answer", "run/tasks.generate"} <= {span.name for span in collector.trace_of(request_id)}
    )
    told = {s.name: s.attributes.get("error.type") for s in collector.trace_of(request_id)}
    assert told["answer"] == told["run/tasks.generate"] == "context_length_exceeded"


def test_no_text_and_no_probes_in_traces_or_logs(collector: Collector, traced: Served):
    answer = complete(traced, stream=True)
    trace_of(collector, answer.headers["X-Request-Id"])
    httpx.get(f"{traced.url}/readyz")
    text = httpx.get(f"{traced.url}/v1/requests/{answer.headers['X-Request-Id']}").json()["response"][
        "choices"
    ][0]["text"]
    assert len(text) > 4
    sent = b"".join(collector.bodies)
    assert SECRET.encode() not in sent
    assert text.encode() not in sent
    assert not [span for span in collector.spans if "readyz" in str(span.attributes.get("http.target"))]
    logged = "".join(path.read_text() for path in (traced.state / "logs").iterdir())
    assert SECRET not in logged
    assert text not in logged


def test_each_attempt_is_one_line_with_the_requests_id(traced: Served):
    request_id = complete(traced).headers["X-Request-Id"]
    found = wait_until(lambda: lines(traced, request_id, 2))
    by_event = {line["event"]: line for line in found}
    assert set(by_event) == {"attempt", "request"}
    attempt, request = by_event["attempt"], by_event["request"]
    assert (attempt["outcome"], attempt["attempt"], attempt["tokens"]) == ("succeeded", 1, 8)
    assert (request["outcome"], request["attempts"], request["tokens"]) == ("succeeded", 1, 8)
    assert attempt["queue_ms"] == request["queue_ms"]


def test_serve_speaks_json_too(traced: Served):
    told = [line["event"] for line in all_lines(traced)]
    assert "Starting Valkey" in told
    assert any(event.startswith("Ready on") for event in told)


def lines(served: Served, request_id: str, count: int) -> list[dict[str, Any]]:
    """The lines about a request, if there are at least ``count``."""
    found = [line for line in all_lines(served) if line.get("id") == request_id]
    return found if len(found) >= count else []


def all_lines(served: Served) -> list[dict[str, Any]]:
    """The lines of ``serve`` and of its programs; each must be a JSON object."""
    return [json.loads(line) for line in served.output.read_text().rpartition("\n")[0].splitlines()]
