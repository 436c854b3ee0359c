"""Open-loop load: requests start at scheduled times, however fast the server is.

Times count from the scheduled start, so that a generator or a server that falls behind can't hide it.
Each request has a thread; if gevent has patched the standard library, it is a greenlet.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from service.client.api_client import ClientError, Sample, StatusError, chat_body, measure
from service.client.load_run import SYSTEM_PROMPT, prompts


@dataclass(frozen=True, slots=True)
class Arrival:
    """The result of one request; ``due_s``, ``began_s`` and ``over_s`` are on ``time.perf_counter``.

    It was answered (``sample``), failed (``error``), or was refused because the queue was full (neither).
    """

    due_s: float
    began_s: float
    over_s: float
    sample: Sample | None = None
    error: str | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the server refused it because the queue was full."""
        return self.sample is None and self.error is None

    @property
    def late_s(self) -> float:
        """Seconds by which the generator missed the scheduled start."""
        return self.began_s - self.due_s

    @property
    def total_s(self) -> float:
        """Seconds from the scheduled start to the end of the answer, or to the refusal."""
        return self.over_s - self.due_s

    @property
    def ttft_s(self) -> float:
        """Seconds from the scheduled start to the first text of an answered request."""
        if self.sample is None:
            raise ValueError("it was not answered")
        return self.sample.started + self.sample.ttft_s - self.due_s


def poisson(rate: float, duration_s: float, source: random.Random) -> Iterator[float]:
    """Increasing offsets in seconds, below ``duration_s``, of a Poisson process of ``rate`` a second."""
    offset = source.expovariate(rate)
    while offset < duration_s:
        yield offset
        offset += source.expovariate(rate)


def chat_bodies(model: str, n_predict: int) -> Iterator[dict[str, Any]]:
    """Greedy requests that never repeat and all have the same length."""
    for prompt in prompts():
        yield chat_body(model, prompt, SYSTEM_PROMPT, n_predict, temperature=0, ignore_eos=True)


def arrive(url: str, body: dict[str, Any], due_s: float) -> Arrival:
    """Send one request that is due at ``due_s``, and wait for its end."""
    began = time.perf_counter()
    try:
        sample = measure(url, body)
        return Arrival(due_s, began, sample.ended, sample)
    except StatusError as error:
        is_full = error.status == HTTPStatus.TOO_MANY_REQUESTS
        return Arrival(due_s, began, time.perf_counter(), error=None if is_full else str(error))
    except ClientError as error:
        return Arrival(due_s, began, time.perf_counter(), error=str(error))


def run_open(
    url: str, bodies: Iterator[dict[str, Any]], offsets: Sequence[float], on_over: Callable[[], None]
) -> list[Arrival]:
    """Start a request at each offset (seconds from now), and wait for all; call ``on_over`` after each."""
    arrivals: list[Arrival] = []
    threads: list[threading.Thread] = []
    start = time.perf_counter()

    def one(body: dict[str, Any], due: float) -> None:
        arrivals.append(arrive(url, body, due))
        on_over()

    for offset in offsets:
        body, due = next(bodies), start + offset
        time.sleep(max(0.0, due - time.perf_counter()))
        threads.append(threading.Thread(target=one, args=(body, due), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return sorted(arrivals, key=lambda arrival: arrival.due_s)
