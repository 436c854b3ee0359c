"""Rows of Locust's table: time to first token, gaps between tokens, whole requests, refusals."""

from __future__ import annotations

from typing import Any

from service.client.api_client import Sample


def fire(environment: Any, name: str, seconds: float, **extra: Any) -> None:
    """Add one value to the row ``name``."""
    values = {"response_length": 0, "exception": None, "context": {}, **extra}
    environment.events.request.fire(request_type="chat", name=name, response_time=seconds * 1e3, **values)


def fire_sample(environment: Any, sample: Sample, since_s: float) -> None:
    """Add an answer's times, counted from ``since_s`` on ``time.perf_counter``."""
    fire(environment, "ttft", sample.started + sample.ttft_s - since_s)
    for gap in sample.gaps_s:
        fire(environment, "itl", gap)
    fire(environment, "e2e", sample.ended - since_s, response_length=len(sample.text.encode()))
