"""The same task under every pool that Celery has, on the real model, started as Celery's users start it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tasks.contract.messages import Event, GenerateRequest, Sampling, State
from tasks.queue.submit import RequestQueue
from tasks.settings import BrokerSettings
from tasks.store.registry import Registry
from tasks.store.requests import RequestStore
from tests.e2e.serving import clean_environment
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "1, 2, 3,"


@pytest.fixture
def start_worker(
    valkey_url: str, redis: Redis, model_path: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts ``celery -A tasks worker`` with options, and waits until a child has registered."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, **settings: str) -> subprocess.Popen[bytes]:
        env = {
            **clean_environment(),
            "REDIS_URL": valkey_url,
            "INFERENCE_MODEL": str(model_path),
            "INFERENCE_N_CTX": "256",
            **{f"INFERENCE_{name.upper()}": value for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", *options]
        with (tmp_path / "worker.log").open("w") as log:
            process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "worker.log").read_text()


def answer(redis: Redis, valkey_url: str, model_path: Path, number: int) -> list[Event]:
    """Queue one request and wait for its end; its events."""
    settings = BrokerSettings(redis_url=valkey_url, model=model_path)
    store = RequestStore(redis)
    name = settings.served_name or ""
    request = GenerateRequest(
        f"request-{number}", name, prompt=PROMPT, max_tokens=6, sampling=Sampling(temperature=0)
    )
    RequestQueue(store, settings.queue_limit).submit(request, "", 60)
    events = wait_until(lambda: _ended(store, request.id), timeout=60)
    assert events[-1].end is not None
    assert events[-1].end.state is State.SUCCEEDED, events[-1]
    return events


def _ended(store: RequestStore, request_id: str) -> list[Event]:
    events = store.read_log(request_id)
    return events if events and events[-1].end is not None else []


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--pool=threads", "-c", "2"), {}),
        (("--pool=processes", "-c", "2"), {"threads": "1"}),
        (("--pool=solo",), {}),
        ((), {"slots": "2", "gpu_layers": "1"}),
    ],
    ids=["threads", "stock prefork", "solo", "children that load the model themselves"],
)
def test_every_pool_runs_the_task(start_worker, redis, valkey_url, model_path, options, settings):
    start_worker(*options, **settings)
    texts = [
        "".join(event.text for event in answer(redis, valkey_url, model_path, number)) for number in range(3)
    ]
    assert texts[0].strip().startswith("4")
    assert texts == [texts[0]] * 3
    assert Registry(redis).children()


def test_flower_shows_the_worker_its_children_and_its_requests(
    start_worker, redis, valkey_url, model_path, tmp_path
):
    start_worker(slots="2", workers="1", log_level="info")
    wait_until(lambda: Registry(redis).children(), timeout=60)
    port = free_port()
    env = {
        **clean_environment(),
        "REDIS_URL": valkey_url,
        "INFERENCE_MODEL": str(model_path),
        "FLOWER_UNAUTHENTICATED_API": "true",
    }
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tasks",
        "flower",
        f"--port={port}",
        "--address=127.0.0.1",
    ]
    with (tmp_path / "flower.log").open("w") as log:
        flower = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        workers = wait_until(lambda: _flower(port, "workers?refresh=1"), timeout=60)
        # Flower asks the worker for events a few seconds after its start.
        wait_until(lambda: "enabled by remote" in (tmp_path / "worker.log").read_text(), timeout=60)
        for number in range(2):
            answer(redis, valkey_url, model_path, number)
        tasks = wait_until(lambda: _done_tasks(port, 2), timeout=60)
        (active,) = wait_until(lambda: _flower(port, "workers?refresh=1"), timeout=60).values()
    finally:
        flower.terminate()
        flower.wait(30)
    ((_, shown),) = workers.items()
    assert shown["stats"]["pool"]["max-concurrency"] == 2
    assert [child["free"] for child in shown["stats"]["pool"]["children"]] == [2]
    assert "tasks.generate" in str(shown["registered"])
    assert {task["name"] for task in tasks} == {"tasks.generate"}
    assert sorted(task["args"] for task in tasks) == ["['request-0']", "['request-1']"]
    assert sorted(task["uuid"] for task in tasks) == ["request-0", "request-1"]
    assert active["stats"]["total"] == {"tasks.generate": 2}
    assert PROMPT not in str(tasks)
    assert PROMPT not in str(active)


def _done_tasks(port: int, num: int) -> list[dict[str, Any]]:
    """The tasks that Flower knows of, once ``num`` are done."""
    tasks = list(_flower(port, "tasks").values())
    return tasks if sum(task["state"] == "SUCCESS" for task in tasks) == num else []


def _flower(port: int, path: str) -> dict[str, Any]:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/api/{path}", timeout=30)
    except httpx.HTTPError:
        return {}
    return answer.json() if answer.status_code == 200 else {}
