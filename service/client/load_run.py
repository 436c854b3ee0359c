"""Puts concurrent load on a server and sums up the results."""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from service.client.api_client import ClientError, Sample, chat_body, measure
from tasks.contract.percentile import percentile

#: All requests share this system prompt, as in a real service; user prompts never repeat.
SYSTEM_PROMPT = "You are a helpful assistant that answers in plain words."
_SUBJECTS = (
    "a mutex", "a bloom filter", "garbage collection", "a hash table", "tail recursion", "a write-ahead log",
    "the tides", "photosynthesis", "a suspension bridge", "compound interest", "a sourdough starter",
    "the water cycle", "a jet engine", "plate tectonics", "a sonnet", "herd immunity",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """``num_requests`` answers of ``n_predict`` tokens, ``concurrency`` of them at a time."""

    num_requests: int
    concurrency: int
    n_predict: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a load; times are in milliseconds, but ``wall_s`` and ``client_cpu_s`` in seconds.

    ``tokens_per_second`` counts every generated token between the first request's start and the last
    request's end. ``client_cpu_s`` is the processor time that measuring took.
    """

    num_requests: int
    num_failed: int
    num_tokens: int
    wall_s: float
    tokens_per_second: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_mean_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    e2e_p50_ms: float
    e2e_p95_ms: float
    client_cpu_s: float

    def as_dict(self) -> dict[str, float]:
        """The figures for JSON, rounded to three decimals."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


def prompts() -> Iterator[str]:
    """User prompts of about the same length that no server has seen before."""
    run = secrets.token_hex(4)
    for number in range(1_000_000_000):
        subject = _SUBJECTS[number % len(_SUBJECTS)]
        yield f"Question {run}-{number}: explain what {subject} is to a beginner, and give one example."


def run_load(url: str, model: str, load: Load, on_done: Callable[[], None] = lambda: None) -> Summary:
    """Put ``load`` on the server at ``url``, and call ``on_done`` after each request.

    There are ``load.concurrency`` threads; each sends one request at a time.

    Raises:
        ClientError: every request failed; the text is the first one's reason.
    """
    run = _Run(url, [_body(model, prompt, load.n_predict) for prompt in _take(load.num_requests)], on_done)
    cpu = time.process_time()
    threads = [threading.Thread(target=run.work, daemon=True) for _ in range(load.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not run.samples:
        raise ClientError(run.errors[0])
    return summarize(run.samples, len(run.errors), time.process_time() - cpu)


def summarize(samples: Sequence[Sample], num_failed: int, client_cpu_s: float) -> Summary:
    """Sum up the requests that succeeded; there must be at least one."""
    wall_s = max(s.ended for s in samples) - min(s.started for s in samples)
    num_tokens = sum(s.num_tokens for s in samples)
    ttft, itl = [s.ttft_s for s in samples], [gap for s in samples for gap in s.gaps_s]
    e2e = [s.ended - s.started for s in samples]
    return Summary(
        num_requests=len(samples) + num_failed,
        num_failed=num_failed,
        num_tokens=num_tokens,
        wall_s=wall_s,
        tokens_per_second=num_tokens / wall_s,
        ttft_p50_ms=percentile(ttft, 0.5) * 1e3,
        ttft_p95_ms=percentile(ttft, 0.95) * 1e3,
        itl_mean_ms=statistics.fmean(itl or [0.0]) * 1e3,
        itl_p50_ms=percentile(itl, 0.5) * 1e3,
        itl_p95_ms=percentile(itl, 0.95) * 1e3,
        e2e_p50_ms=percentile(e2e, 0.5) * 1e3,
        e2e_p95_ms=percentile(e2e, 0.95) * 1e3,
        client_cpu_s=client_cpu_s,
    )


class _Run:
    """Requests that threads take one by one."""

    def __init__(self, url: str, bodies: list[dict[str, Any]], on_done: Callable[[], None]) -> None:
        self.samples: list[Sample] = []
        self.errors: list[str] = []
        self._url = url
        self._bodies = iter(bodies)
        self._lock = threading.Lock()
        self._on_done = on_done

    def work(self) -> None:
        """Send requests until none is left."""
        while (body := self._next()) is not None:
            try:
                self.samples.append(measure(self._url, body))
            except ClientError as error:
                self.errors.append(str(error))
            self._on_done()

    def _next(self) -> dict[str, Any] | None:
        with self._lock:
            return next(self._bodies, None)


def _take(count: int) -> list[str]:
    source = prompts()
    return [next(source) for _ in range(count)]


def _body(model: str, prompt: str, n_predict: int) -> dict[str, Any]:
    return chat_body(model, prompt, SYSTEM_PROMPT, n_predict, temperature=0, ignore_eos=True)
