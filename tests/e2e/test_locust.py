"""The Locust file, headless, against the real service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.serving import Served, clean_environment

pytestmark = pytest.mark.e2e
LOADTEST = Path(__file__).parents[2] / "loadtest"


def run_locust(file: str, service: Served, *options: str) -> dict[str, dict[str, int]]:
    """Locust's rows by name, of requests that began in four seconds of ``loadtest/{file}``."""
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(LOADTEST / file),
        "--headless",
        "--host",
        service.url,
    ]
    command += ["-t", "4s", "--stop-timeout", "60", "--n-predict", "4", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_reports_first_token_gaps_and_whole_requests_as_rows(service: Served):
    rows = run_locust("locustfile.py", service, "-u", "2", "-r", "2")
    assert set(rows) == {"ttft", "itl", "e2e"}
    assert rows["e2e"]["num_failures"] == 0
    assert rows["e2e"]["num_requests"] == rows["ttft"]["num_requests"] > 0


def test_an_open_loop_reports_refusals_too(start_service: Callable[..., Served]):
    """Far more requests arrive than one slot and a queue of one can hold."""
    served = start_service("--workers", "1", "--slots", "1", "--queue-limit", "1").wait_ready()
    rows = run_locust("locustfile_open.py", served, "-u", "1", "--rate", "20")
    assert set(rows) == {"ttft", "itl", "e2e", "refused"}
    assert rows["e2e"]["num_failures"] == 0
    assert rows["e2e"]["num_requests"] == rows["ttft"]["num_requests"] > 0
    assert rows["refused"]["num_requests"] > 0
    assert served.end() == 0
