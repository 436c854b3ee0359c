"""A worker host's /metrics, under every pool."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from tests.integration.rig import SLOTS, WORKERS, worker
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def slots(port: int) -> dict[str, float]:
    """Slots by state."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {sample.labels["state"]: sample.value for sample in families["inference_worker_slots"].samples}


@pytest.mark.parametrize(("options", "total"), [((), WORKERS * SLOTS), (("--pool=solo",), 1)])
def test_slots_are_busy_while_tasks_run(
    options: tuple[str, ...], total: int, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    port = free_port()
    concurrency = ("--concurrency=1",) if options else ()
    settings = {"INFERENCE_METRICS_PORT": str(port)}
    with worker(valkey_url, redis, tmp_path / "log", *options, *concurrency, **settings) as rig:
        assert slots(port) == {"busy": 0, "free": total}
        rig.hold("a")
        rig.wait_started(1)
        wait_until(lambda: slots(port) == {"busy": 1, "free": total - 1})
        rig.let_go("a")
        wait_until(rig.is_done("a"))
        wait_until(lambda: slots(port) == {"busy": 0, "free": total})


def test_a_port_that_is_taken_ends_the_worker_and_says_so(
    valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with (
            pytest.raises(AssertionError, match=f"--metrics-port: can't listen on 127.0.0.1, port {port}"),
            worker(valkey_url, redis, log, INFERENCE_METRICS_PORT=port),
        ):
            pass


def test_a_silent_connection_is_let_go(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    port = free_port()
    with (
        worker(valkey_url, redis, tmp_path / "log", INFERENCE_METRICS_PORT=str(port)),
        socket.create_connection(("127.0.0.1", port), timeout=60) as silent,
    ):
        silent.sendall(b"GET /metr")
        assert silent.recv(1) == b""


def test_a_killed_workers_port_is_free_at_once(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    port = free_port()
    settings = {"INFERENCE_METRICS_PORT": str(port)}
    with worker(valkey_url, redis, tmp_path / "first", **settings) as first:
        first.hold("a")
        first.wait_started(1)
        first.process.kill()
        first.process.wait()
    with worker(valkey_url, redis, tmp_path / "second", **settings):
        assert sum(slots(port).values()) == WORKERS * SLOTS
