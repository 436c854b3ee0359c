"""Arrivals on a clock, and the figures made from them; the tests start the servers."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import Arrival, poisson, run_open
from loadtest.cpu import COMPUTE, OTHER, REST, Threads, report, split
from loadtest.overload.verdict import Capacity, Verdict, lines
from service.client.api_client import Sample

pytestmark = pytest.mark.unit


@given(st.floats(0.1, 50), st.floats(0.1, 60), st.integers())
def test_arrivals_increase_and_end_in_time(rate: float, duration: float, seed: int):
    offsets = list(poisson(rate, duration, random.Random(seed)))
    assert offsets == sorted(offsets)
    assert all(0 < offset < duration for offset in offsets)
    assert offsets == list(poisson(rate, duration, random.Random(seed)))


@given(st.floats(5, 50), st.integers())
def test_arrivals_come_at_their_rate(rate: float, seed: int):
    """Within six standard deviations; a Poisson count's variance equals its mean."""
    expected = rate * 100
    count = sum(1 for _ in poisson(rate, 100, random.Random(seed)))
    assert abs(count - expected) < 6 * expected**0.5


class Handler(BaseHTTPRequestHandler):
    """Answers once every request has come; a loop that waited for each answer would never end."""

    barrier: threading.Barrier

    def do_POST(self) -> None:
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        self.barrier.wait(30)
        self.send_response({"full": 429, "broken": 503}.get(prompt, 200))
        self.end_headers()
        if prompt == "good":
            text = json.dumps({"choices": [{"delta": {"content": "Yes"}}]})
            self.wfile.write(f"data: {text}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    handler = type("Bound", (Handler,), {"barrier": threading.Barrier(3)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_open_loop_waits_for_no_answer_and_counts_from_the_schedule(url: str):
    over: list[int] = []
    bodies = iter([{"prompt": prompt} for prompt in ("good", "full", "broken")])
    arrivals = run_open(url, bodies, [0.0, 0.01, 0.02], lambda: over.append(1))
    good, full, broken = arrivals
    assert good.sample is not None
    assert good.late_s + good.sample.ttft_s <= good.ttft_s <= good.total_s
    assert full.is_refused
    assert not broken.is_refused
    assert broken.error
    assert "503" in broken.error
    assert all(0 <= arrival.late_s <= arrival.total_s for arrival in arrivals)
    assert len(over) == 3


def answered(due: float, ttft: float, total: float, num_tokens: int = 10) -> Arrival:
    sample = Sample(due, due + total, ttft, (), num_tokens, "", None)
    return Arrival(due, due, due + total, sample)


def test_the_verdict():
    arrivals = [
        answered(100, 1, 4),
        answered(101, 2, 9, num_tokens=9),
        Arrival(101, 101.001, 101.005),
        Arrival(102, 102, 103, error="The answer broke off."),
    ]
    verdict = Verdict.of(arrivals, n_predict=10)
    assert (verdict.num_arrivals, verdict.num_accepted, verdict.num_refused) == (4, 3, 1)
    assert (verdict.num_unfinished, verdict.errors) == (1, ("The answer broke off.",))
    assert verdict.refusal_p95_s == pytest.approx(0.005)
    assert verdict.goodput == pytest.approx(19 / 10)
    capacity = Capacity(tokens_per_second=2.0, requests_per_second=0.5, queue_limit=6, slots=4)
    assert capacity.ttft_bound_s == 20
    told = "\n".join(lines(verdict, capacity))
    assert "did not finish: 2\n  The answer broke off." in told
    assert "(queue limit 6 + 4 slots) / service rate = 20.00 s; ratio 0.10" in told
    assert "goodput / capacity 0.95" in told


def test_a_verdict_of_nothing_accepted():
    verdict = Verdict.of([Arrival(1, 1, 2)], n_predict=10)
    assert (verdict.num_accepted, verdict.goodput, verdict.ttft_p95_s) == (0, 0, 0)


def test_processor_time_is_split_by_part_and_in_children_by_thread():
    before = [Threads("API", {1: 1.0}), Threads(OTHER, {2: 5.0, 3: 4.0, 4: 1.0})]
    after = [Threads("API", {1: 1.5, 9: 0.25}), Threads(OTHER, {2: 5.25, 3: 8.0, 4: 4.0})]
    spent = split(before, after, num_computing=2)
    assert spent == {
        "API": 0.75, "Celery's parent": 0, "Valkey": 0, REST: 0, OTHER: 0.25, COMPUTE: 7.0,
    }  # fmt: skip
    (told,) = (line for line in report([spent, spent]) if line.startswith("outside"))
    assert told == "outside the computing threads: 1 µs/token (1 to 1)"
