"""Traces of the API alone, and how the API works without an endpoint or without OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from redis import Redis

from tests.integration.http_rig import Api, ScriptedWorker

pytestmark = pytest.mark.integration

#: What an API and a worker child do about traces, without starting either.
BUILD = """
import logging, sys
logging.basicConfig(level=logging.WARNING)
if sys.argv[1] == "without":
    sys.modules["opentelemetry"] = None
from flask import Flask
from service.app import create_app
from service.settings import ApiSettings
from service.telemetry.tracing import instrument
from tasks.worker.attempt_log import attempt_observers
from tasks.settings import WorkerSettings
instrument(Flask("app"), ApiSettings())
print(len(attempt_observers(WorkerSettings(threads=1, workers=1))))
# redis-py imports the part for metrics by itself, where it is installed.
ours = tuple(f"opentelemetry.{part}" for part in ("exporter", "instrumentation", "sdk.trace"))
print([name for name in sys.modules if name.startswith(ours)])
"""


def build(word: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "INFERENCE_"))}
    command = [sys.executable, "-c", BUILD, word]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**env, **variables})


def test_without_an_endpoint_nothing_is_imported():
    assert build("with").stdout.split("\n")[:2] == ["1", "[]"]


def test_without_the_extra_it_says_what_to_install():
    done = build("without", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.stdout.startswith("1\n")
    assert "concurrent-inference-server[tracing]" in done.stderr


def test_refused_requests_leave_nothing_behind(
    valkey_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come on one connection, one after the other; each has a separate trace."""
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra 'tracing': pip install -e '.[tracing]'")
    from tests.collector import Collector

    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    worker = ScriptedWorker(valkey_url)
    worker.start()
    with Collector() as collector:
        api = Api(valkey_url, otlp_endpoint=collector.url, queue_limit=1)
        api.wait_ready()
        with worker.paused():
            waiting = api.submit("hello")
            assert [api.complete("no").status_code for _ in range(3)] == [429] * 3
        assert api.http.get(f"/v1/requests/{waiting}").status_code == 200
        assert api.stop() == 0  # sends the spans that are left
    worker.stop()
    roots = [span for span in collector.spans if not span.parent]
    assert [span.attributes.get("http.status_code") for span in roots] == [202, 429, 429, 429, 200]
    assert len({span.trace for span in roots}) == 5
    assert {span.trace for span in collector.spans} == {span.trace for span in roots}


def test_a_collector_that_is_away_hurts_nobody(valkey_url: str, redis: Redis) -> None:
    worker = ScriptedWorker(valkey_url)
    worker.start()
    api = Api(valkey_url, otlp_endpoint="http://127.0.0.1:1")
    api.wait_ready()
    assert [api.complete("hello").status_code for _ in range(3)] == [200] * 3
    assert api.stop() == 0
    worker.stop()
