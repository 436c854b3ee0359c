"""Kernels that fail on this machine: the next set serves, or the start ends with one message."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import COMMAND, QUICK_START, Served, are_gone, clean_environment, command_of
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

STAND_IN = str(Path(__file__).parent / "faulty_kernels")
SHAPE = ("--workers", "1", "--threads", "2", "--oversubscribe", "--slots", "4", "--n-ctx", "512")


def start(folder: Path, fault: str) -> Served:
    """A service whose llama.cpp has ``fault``, and that knows nothing of earlier starts."""
    cache = str(folder / "cache")
    return Served(folder / "state", *SHAPE, FAULTY_KERNELS=fault, PYTHONPATH=STAND_IN, XDG_CACHE_HOME=cache)


def kernels(service: Served) -> str:
    """The kernels of its one child, from /v1/status."""
    (child,) = httpx.get(f"{service.url}/v1/status").json()["children"]
    return str(child["kernels"])


def answer(service: Served) -> str:
    """A greedy answer."""
    body = {"model": "", "prompt": "A mutex is", "max_tokens": 8, "temperature": 0}
    body["model"] = httpx.get(f"{service.url}/v1/models").json()["data"][0]["id"]
    reply = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)
    return str(reply.raise_for_status().json()["choices"][0]["text"])


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("repacked:SIGSEGV", "SIGSEGV"),
        ("repacked:SIGILL", "SIGILL"),
        ("repacked:nan", "NaN"),
        ("repacked:nonsense", "the plainest kernels choose"),
        ("repacked:hang", "hung while computing one row"),
        ("threads:hang", "hung while computing one row"),
    ],
)
def test_the_next_set_serves(model_path: Path, tmp_path: Path, fault: str, seen: str):
    service = start(tmp_path, fault)
    try:
        service.wait_ready()
        expected = "1 thread" if fault.startswith("threads") else "weights as in the file, 2 threads"
        assert expected in kernels(service)
        assert answer(service)
        log = (service.state / "logs" / "worker.log").read_text()
        assert seen in log
        assert "llama.cpp's quickest kernels fail here" in log
        metrics = httpx.get(f"{service.url}/metrics").text
        assert any("inference_kernels_info{" in line and expected in line for line in metrics.splitlines())
    finally:
        service.end()


@pytest.mark.parametrize("fault", ["all:SIGSEGV", "all:hang"])
def test_when_no_set_computes_the_start_ends_with_one_message(model_path: Path, tmp_path: Path, fault: str):
    service = start(tmp_path, fault)
    assert service.process.wait(timeout=60) != 0
    told = service.output.read_text()
    assert "llama.cpp can't compute this model here with any of its kernels" in told
    assert "doctor --repair" in told
    assert "Traceback" not in told


def test_a_worker_alone_ends_with_the_same_message(model_path: Path, tmp_path: Path, valkey_url: str):
    faulty = {"FAULTY_KERNELS": "all:SIGILL", "PYTHONPATH": STAND_IN, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, "worker", "--redis-url", valkey_url, *SHAPE],
        capture_output=True,
        text=True,
        env=clean_environment() | QUICK_START | faulty,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "llama.cpp can't compute this model here with any of its kernels" in told
    assert "SIGILL" in told
    assert "Traceback" not in told


def test_a_trial_that_hangs_ends_with_its_worker(model_path: Path, tmp_path: Path):
    service = start(tmp_path, "all:hang")
    trials = wait_until(
        lambda: [p for p in service.family() if "tasks.engine.kernels.trial" in command_of(p)], 60
    )
    service.part("celery").kill()
    assert wait_until(lambda: are_gone(trials))
    service.process.wait(timeout=60)
