"""What API processes count is kept when they are killed, in as much memory however many are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from tests.integration.http_rig import Api, ScriptedWorker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

KILLS, PROCESSES = 6, 2


@pytest.fixture
def api(redis: Redis, valkey_url: str) -> Iterator[Api]:
    worker, api = ScriptedWorker(valkey_url), Api(valkey_url, api_workers=PROCESSES)
    worker.start()
    api.wait_ready()
    yield api
    worker.stop()
    api.stop()


def processes(api: Api) -> set[int]:
    return {child.pid for child in psutil.Process(api.process.pid).children()}


def counts(api: Api) -> tuple[float, float]:
    """Succeeded requests, and the requests that were refused for a bad value."""
    families = text_string_to_metric_families(api.http.get("/metrics").text)
    found = {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}
    return (
        found.get(("inference_requests_total", ("scripted", "succeeded")), 0),
        found[("inference_requests_refused_total", ("invalid_value",))],
    )


def test_killed_processes_lose_no_counts_and_leave_no_files(api: Api):
    for number in range(1, KILLS + 1):
        assert api.complete("a b").status_code == 200
        assert api.complete("a", max_tokens=-1).status_code == 400
        wait_until(lambda: counts(api) == (number, number))  # noqa: B023
        victims = processes(api)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(processes(api) - victims) == PROCESSES)  # noqa: B023
        api.http.close()
        api.http = type(api.http)(base_url=api.url, timeout=30)
        api.wait_ready()
        wait_until(lambda: counts(api) == (number, number))  # noqa: B023
    assert open_files(api) == []


def open_files(api: Api) -> list[str]:
    """The regular files that the processes have open to write, without their signs of life."""
    opened = [file for pid in processes(api) for file in psutil.Process(pid).open_files()]
    return [file.path for file in opened if file.mode != "r" and "wgunicorn" not in file.path]
