"""The Locust file, headless, against the real service."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import Served, clean_environment

pytestmark = pytest.mark.e2e
LOCUSTFILE = Path(__file__).parents[2] / "loadtest" / "locustfile.py"


def test_reports_first_token_gaps_and_whole_requests_as_rows(service: Served, tmp_path: Path):
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--host", service.url]
    command += ["-u", "2", "-r", "2", "-t", "4s", "--stop-timeout", "10", "--n-predict", "4"]
    command += ["--csv", str(tmp_path / "rows")]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "rows_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"ttft", "itl", "e2e", "Aggregated"}
    assert int(rows["e2e"]["Failure Count"]) == 0
    assert int(rows["e2e"]["Request Count"]) == int(rows["ttft"]["Request Count"]) > 0
