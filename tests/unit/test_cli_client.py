"""The measuring client and the load it makes, against a server that the test starts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.client.api_client import ClientError, Sample, chat_body, measure, served_model
from service.client.load_run import Load, prompts, run_load, summarize
from tasks.contract.percentile import percentile

pytestmark = pytest.mark.unit


def event(**delta: str) -> str:
    return json.dumps({"choices": [{"delta": delta}]})


ANSWER = [
    event(role="assistant", content=""),
    event(content="Grüß"),
    event(content=" Gott"),
    json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}], "timings": {"ttft_ms": 1.5}}),
    json.dumps({"choices": [], "usage": {"completion_tokens": 7}}),
    "[DONE]",
]


class Handler(BaseHTTPRequestHandler):
    """Answers as the prompt's words say."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "toy"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        self.seen.append(prompt)
        if "refuse" in prompt:
            self._send(429, json.dumps({"error": {"message": "The queue is full."}}).encode())
            return
        lines = ANSWER[:3] if "break" in prompt else ANSWER
        if "fail" in prompt:
            lines = [*ANSWER[:2], json.dumps({"error": {"message": "It broke."}})]
        self._stream(lines)

    def _stream(self, lines: list[str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            data = f": comment\nid: 3\ndata: {line}\n\n".encode()
            for part in (data[:15], data[15:]):  # an event may arrive in pieces
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def url(seen: list[str]) -> Iterator[str]:
    handler = type("Bound", (Handler,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_measures_an_answer(url: str):
    sample = measure(url, chat_body("toy", "hello", "be brief", 7, temperature=0, seed=None))
    assert sample.text == "Grüß Gott"
    assert (sample.num_tokens, len(sample.gaps_s)) == (7, 1)
    assert sample.timings == {"ttft_ms": 1.5}
    assert 0 < sample.ttft_s <= sample.ended - sample.started


def test_the_body_leaves_out_what_nobody_chose():
    body = chat_body("toy", "hello", None, 7, temperature=0, seed=None)
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert body["temperature"] == 0
    assert "seed" not in body


@pytest.mark.parametrize(
    ("prompt", "told"),
    [("refuse", "HTTP 429: The queue is full."), ("break", "broke off"), ("fail", "It broke.")],
)
def test_what_goes_wrong_is_told(url: str, prompt: str, told: str):
    with pytest.raises(ClientError, match=told):
        measure(url, chat_body("toy", prompt, None, 7))


def test_nobody_listens():
    with pytest.raises(ClientError, match="refused"):
        measure("http://127.0.0.1:1", chat_body("toy", "hello", None, 7))


def test_which_model(url: str):
    assert served_model(url) == served_model(f"{url}/v1") == "toy"


def test_a_load_sends_every_request_once(url: str, seen: list[str]):
    done: list[int] = []
    summary = run_load(url, "toy", Load(num_requests=10, concurrency=3, n_predict=7), lambda: done.append(1))
    assert (summary.num_requests, summary.num_failed, summary.num_tokens) == (10, 0, 70)
    assert len(done) == len(set(seen)) == 10


def test_a_load_that_fails_altogether():
    with pytest.raises(ClientError, match="refused"):
        run_load("http://127.0.0.1:1", "toy", Load(2, 2, 7))


def test_prompts_never_repeat_between_runs():
    first, second = prompts(), prompts()
    assert len({next(source) for source in (first, second) for _ in range(100)}) == 200


def test_the_summary_counts_from_the_first_start_to_the_last_end():
    samples = [Sample(10.0, 12.0, 0.5, (0.1, 0.3), 3, "", None), Sample(11.0, 14.0, 1.5, (0.2,), 5, "", None)]
    summary = summarize(samples, num_failed=1, client_cpu_s=0.1)
    assert (summary.num_requests, summary.num_tokens, summary.wall_s) == (3, 8, 4.0)
    assert summary.tokens_per_second == 2.0
    assert summary.ttft_p50_ms == pytest.approx(500)
    assert summary.itl_p50_ms == pytest.approx(200)


def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed():
    assert percentile([], 0.5) == 0.0
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.95) == 95
