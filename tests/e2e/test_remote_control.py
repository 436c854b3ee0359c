"""Celery's remote control, and messages that nobody can read, against a real worker with the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.contract import redis_names
from tasks.contract.messages import State, queue_name
from tests.e2e.serving import clean_environment
from tests.integration.host import GARBAGE, SETTINGS, Host
from tests.integration.refusing import refusing
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def shared(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    name, log = model_path.name.removesuffix(".gguf"), tmp_path_factory.mktemp("worker") / "log"
    with refusing() as valkey:
        env = {**clean_environment(), **SETTINGS, "REDIS_URL": valkey.url, "INFERENCE_N_CTX": "512"}
        host = Host(valkey.redis, env | {"INFERENCE_MODEL": str(model_path)}, name, log)
        host.start()
        yield host
        host.stop()


@pytest.fixture
def host(shared: Host) -> Iterator[Host]:
    yield shared
    shared.tidy_up()


@pytest.mark.parametrize("command", [("revoke",), ("terminate", "SIGKILL")], ids=["revoke", "terminate"])
def test_a_running_request_is_cancelled_and_its_neighbour_goes_on(
    command: tuple[str, ...], host: Host
) -> None:
    victim, neighbour = host.start_long(2)
    assert host.control(*command, victim) == {"ok": f"{victim}: cancelled"}
    assert host.state(victim) is State.CANCELLED
    wait_until(lambda: host.redis.hlen(redis_names.UNACKED) == 1)
    assert host.state(neighbour) is State.RUNNING


@pytest.mark.parametrize("kind", ["no arguments", "an id that is a number", "a body that is no JSON"])
def test_what_the_task_can_not_read_is_kept(kind: str, host: Host) -> None:
    host.redis.delete(redis_names.DEAD_LETTERS)
    host.redis.rpush(queue_name(host.model), json.dumps(GARBAGE[kind](host)))
    request = host.submit(1)
    wait_until(lambda: host.state(request) is State.SUCCEEDED, timeout=60)
    wait_until(lambda: host.redis.llen(redis_names.DEAD_LETTERS) == 1)
