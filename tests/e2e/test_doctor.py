"""``inference-server doctor`` on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import Served, run_command
from tests.ports import free_port

pytestmark = pytest.mark.e2e


def doctor(state: Path, *options: str, port: int | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by their subjects."""
    place = ("--port", str(port or free_port()), "--state-dir", str(state))
    done = run_command("doctor", "--json", *place, *options)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["is_fit"] == (done.returncode == 0)
    return done.returncode, {finding["about"]: finding for finding in told["findings"]}


def test_a_machine_that_serves_is_fit(model_path: Path, tmp_path: Path):
    code, found = doctor(tmp_path)
    assert code == 0
    expected = {
        "model",
        "context",
        "memory",
        "cores",
        "load",
        "llama.cpp",
        "kernels",
        "queue",
        "port",
        "state",
    }
    assert set(found) == expected
    assert found["kernels"]["level"] != "problem"
    assert found["model"]["level"] == "ok"


def test_a_file_that_was_cut_short(model_path: Path, tmp_path: Path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(model_path.read_bytes()[:-1_000_000])
    code, found = doctor(tmp_path, "--model", str(path))
    assert (code, found["model"]["level"]) == (1, "problem")
    assert "truncated" in found["model"]["told"]
    assert "port" in found


def test_a_file_that_has_changed(model_path: Path, tmp_path: Path):
    path = tmp_path / model_path.name
    content = bytearray(model_path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    sidecar = Path(f"{model_path}.sha256")
    Path(f"{path}.sha256").write_text(sidecar.read_text())
    code, found = doctor(tmp_path, "--model", str(path))
    assert (code, found["model"]["level"]) == (1, "problem")


def test_what_does_not_fit(model_path: Path, tmp_path: Path):
    code, found = doctor(tmp_path, "--n-ctx", "100000000")
    assert (code, found["memory"]["level"], found["context"]["level"]) == (1, "problem", "warning")
    code, found = doctor(tmp_path, "--workers", "999", "--threads", "999")
    assert (code, found["settings"]["level"]) == (1, "problem")
    assert "the largest that fits" in found["settings"]["told"]


def test_beside_a_service_that_runs(service: Served):
    code, found = doctor(service.state, port=service.port)
    assert code == 1
    assert "answers" in found["port"]["told"]
    assert f"Process {service.process.pid} already serves" in found["state"]["told"]


def test_a_table_for_people(model_path: Path, tmp_path: Path):
    done = run_command(
        "doctor",
        "--port",
        str(free_port()),
        "--state-dir",
        str(tmp_path),
        "--redis-url",
        "redis://127.0.0.1:1",
    )
    assert done.returncode == 1
    assert "problem" in done.stdout
    assert "Start it, or pass another --redis-url." in done.stdout
