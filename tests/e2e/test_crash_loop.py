"""Workers of the real model that can't go on: however they were started, they end with one message."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from redis import Redis

from tasks.contract.exit_status import HOPELESS
from tasks.contract.messages import GenerateRequest, Sampling
from tasks.queue.submit import RequestQueue
from tasks.settings import BrokerSettings
from tasks.store import last_words
from tasks.store.requests import RequestStore
from tasks.worker.ending.crash_loop import MAX_DEATHS
from tests.e2e.serving import COMMAND, QUICK_START, Served, clean_environment
from tests.tiny_models import attends
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
#: Children end by a signal at their first batch, although the proof before has computed it.
CRASHING = {"FAULTY_KERNELS": "worker:SIGSEGV", "PYTHONPATH": str(FOLDER / "faulty_kernels")}
#: llama.cpp's library lacks a symbol.
BROKEN = {"PYTHONPATH": str(FOLDER / "broken_library")}
SHAPE = ("--workers", "1", "--threads", "1", "--slots", "4", "--n-ctx", "512")
CELERY = (sys.executable, "-m", "celery", "--quiet", "-A", "tasks", "worker")
PLAIN = (*CELERY, "--pool=processes", "--concurrency=1")
WORKER = (*COMMAND, "worker", *SHAPE)


def message_of(served: Served) -> str:
    """The last line of a service that ends by itself because its worker can't go on."""
    assert served.process.wait(timeout=60) == HOPELESS, served.output.read_text()
    told = served.output.read_text()
    assert "Traceback" not in told
    *_, last = told.splitlines()
    return last


def is_crash(text: str) -> bool:
    """Whether the text says everything about a crash loop."""
    said = f"{MAX_DEATHS} children in a row ended before they were ready, by SIGSEGV (Segmentation fault)"
    wanted = (said, "while computing the first batch", "doctor --repair", "The processor: ")
    return all(part in text for part in wanted)


def test_serve_ends_when_every_child_crashes(model_path: Path, tmp_path: Path) -> None:
    served = Served(tmp_path / "state", *SHAPE, port=None, **CRASHING)
    message = message_of(served)
    assert message.startswith("Error: The worker gives up: ")
    assert is_crash(message)
    assert "Ready on" not in served.output.read_text()


@pytest.mark.parametrize("command", [WORKER, CELERY, PLAIN], ids=["worker", "celery", "one task a child"])
def test_a_worker_alone_ends_when_every_child_crashes(
    command: Sequence[str], model_path: Path, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    status, log = run_worker(command, valkey_url, tmp_path, INFERENCE_MODEL=str(model_path), **CRASHING)
    assert status == HOPELESS, log
    [line] = [line for line in log.splitlines() if "[critical" in line]
    assert is_crash(line)
    [words] = last_words.read(redis)
    assert words.text in line
    assert words.model == model_path.stem


@pytest.mark.parametrize("pool", ["prefork", "processes", "threads", "solo"])
def test_memory_that_is_not_enough_is_one_message(
    pool: str, model_path: Path, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    """Under every pool. ``threads`` finds out at its first request and puts it back. ``prefork`` is ours."""
    settings = BrokerSettings(redis_url=valkey_url, model=model_path)
    queue = RequestQueue(RequestStore(redis), settings.queue_limit)
    request = GenerateRequest("r", model_path.stem, prompt="One", max_tokens=2, sampling=Sampling())
    queue.submit(request, "", 60)
    variables = {**CRASHING, "FAULTY_KERNELS": "worker:memory", "INFERENCE_MODEL": str(model_path)}
    status, log = run_worker([*CELERY, f"--pool={pool}"], valkey_url, tmp_path, **variables)
    assert status == HOPELESS, log
    [line] = [line for line in log.splitlines() if "[critical" in line]
    assert re.search(r"no memory for \d+ sequences.*lower --slots, --n-ctx or --workers", line)
    assert re.search(r"The memory: [\d,]+ MiB needed: .*; [\d,]+ MiB available", line)
    assert queue.waiting(model_path.stem) == 1
    [words] = last_words.read(redis)
    assert words.text in line


@pytest.mark.parametrize("pool", ["prefork", "processes", "threads", "solo"])
def test_an_error_that_nobody_foresaw_ends_the_worker_and_loses_no_request(
    pool: str, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    model = attends(tmp_path / "tiny.gguf")
    settings = BrokerSettings(redis_url=valkey_url, model=model)
    queue = RequestQueue(RequestStore(redis), settings.queue_limit)
    queue.submit(GenerateRequest("r", model.stem, prompt="One", max_tokens=2, sampling=Sampling()), "", 60)
    variables = {**CRASHING, "FAULTY_KERNELS": "worker:error", "INFERENCE_MODEL": str(model)}
    status, log = run_worker([*CELERY, f"--pool={pool}"], valkey_url, tmp_path, **variables)
    assert status == HOPELESS, log
    [line] = [line for line in log.splitlines() if "[critical" in line]
    assert "while computing the first batch (LookupError('a batch that nobody foresaw'))" in line
    assert queue.waiting(model.stem) == 1
    [words] = last_words.read(redis)
    assert words.text in line


@pytest.mark.parametrize("command", [WORKER, CELERY], ids=["worker", "celery"])
def test_a_missing_symbol_is_one_message(
    command: Sequence[str], model_path: Path, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    status, log = run_worker(command, valkey_url, tmp_path, INFERENCE_MODEL=str(model_path), **BROKEN)
    assert status == HOPELESS, log
    assert "Traceback" not in log
    [line] = [line for line in log.splitlines() if "llama_symbol_that_is_missing" in line]
    assert "doctor --repair" in line


def test_serve_says_that_a_symbol_is_missing(model_path: Path, tmp_path: Path) -> None:
    message = message_of(Served(tmp_path / "state", *SHAPE, port=None, **BROKEN))
    assert message.startswith("Error: llama.cpp's library can't be used: ")
    assert "llama_symbol_that_is_missing" in message
    assert "doctor --repair" in message


def test_a_model_file_that_is_cut_short_under_its_worker(model_path: Path, tmp_path: Path) -> None:
    """Pages are read from the file, so children die by SIGBUS, and so do their replacements."""
    model = tmp_path / "model.gguf"
    shutil.copy(model_path, model)
    served = Served(tmp_path / "state", *SHAPE, "--model", str(model)).wait_ready()
    with model.open("r+b") as file:
        file.truncate(1_000_000)
    body = {"prompt": "Once upon a time", "max_tokens": 4}
    headers = {"Prefer": "respond-async"}
    httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=30).raise_for_status()
    message = message_of(served)
    assert f"The model file {model} has changed since the worker loaded it." in message
    assert "--repair" not in message


def test_a_model_file_that_goes_is_missed_but_served(model_path: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(model_path, model)
    served = Served(tmp_path / "state", *SHAPE, "--model", str(model)).wait_ready()
    log = served.state / "logs" / "worker.log"
    model.unlink()
    wait_until(lambda: f"The model file {model} is gone" in log.read_text(), timeout=30)
    [child] = re.findall(r"child ready.*pid=(\d+)", log.read_text())
    os.kill(int(child), signal.SIGKILL)
    body = {"prompt": "Once upon a time", "max_tokens": 4}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert answer.raise_for_status().json()["choices"][0]["text"]
    assert served.end() == 0


def run_worker(command: Sequence[str], url: str, folder: Path, **variables: str) -> tuple[int, str]:
    """A worker's exit status and its log."""
    environment = {
        **clean_environment(),
        **QUICK_START,
        "REDIS_URL": url,
        "INFERENCE_WORKERS": "1",
        "INFERENCE_THREADS": "1",
        **variables,
    }
    log = folder / "worker.log"
    with log.open("w") as output:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, timeout=90, check=False
        )
    return done.returncode, log.read_text()
