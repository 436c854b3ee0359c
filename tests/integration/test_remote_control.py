"""Celery's remote control, and messages that nobody can read, against a real worker without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tasks.contract import redis_names
from tasks.contract.messages import State, queue_name
from tests.integration.host import GARBAGE, ROOT, SETTINGS, SLOTS, Host, message_of
from tests.integration.refusing import refusing
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

#: Only the task itself sees these, and this worker has another one.
SEEN_BY_THE_TASK = ("no arguments", "an id that is a number")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    log = tmp_path_factory.mktemp("worker") / "log"
    with refusing() as valkey:
        env = {**os.environ, **SETTINGS, "REDIS_URL": valkey.url, "INFERENCE_MODEL_NAME": "m"}
        host = Host(valkey.redis, env, "m", log, "tests.integration.pool_app")
        host.start()
        yield host
        host.stop()


@pytest.fixture
def host(shared: Host) -> Iterator[Host]:
    yield shared
    shared.tidy_up()


# ---- remote control -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("revoke",), ("terminate", "SIGKILL")], ids=["revoke", "terminate"])
def test_a_running_request_is_cancelled_and_its_neighbour_goes_on(
    command: tuple[str, ...], host: Host
) -> None:
    victim, neighbour = host.start_long(2)
    children = host.children()
    assert host.control(*command, victim) == {"ok": f"{victim}: cancelled"}
    assert host.state(victim) is State.CANCELLED
    wait_until(lambda: host.redis.hlen(redis_names.UNACKED) == 1)
    assert host.state(neighbour) is State.RUNNING
    assert host.children() == children
    assert host.control("revoke", victim, "nobody") == {
        "ok": f"{victim}: is over (cancelled); nobody: unknown"
    }
    host.store.cancel(neighbour)
    host.wait_idle()


def test_a_waiting_request_is_cancelled(host: Host) -> None:
    host.start_long(SLOTS)
    waiting = host.submit(1)
    assert host.state(waiting) is State.QUEUED
    host.control("revoke", waiting)
    assert host.state(waiting) is State.CANCELLED
    assert host.redis.llen(queue_name(host.model)) == 0


def test_requests_are_cancelled_by_their_stamps(host: Host) -> None:
    def stamp(headers: Any) -> None:
        headers.update({"stamped_headers": ["team"], "stamps": {"team": ["red"]}})

    [stamped, _], [plain] = [*host.start_long(1, stamp), None], host.start_long(1)
    later = host.submit(1, stamp)
    host.control("revoke_by_stamped_headers", "team=red")
    assert host.state(str(stamped)) is State.CANCELLED
    wait_until(lambda: host.state(later) is State.CANCELLED, timeout=20)
    assert host.state(plain) is State.RUNNING


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("pool_grow", "1"), "fixed size"),
        (("pool_shrink", "1"), "fixed size"),
        (("pool_restart",), "fixed size"),
        (("autoscale", "3", "1"), "fixed size"),
        (("rate_limit", "tasks.generate", "1/h"), "no rate limit"),
        (("time_limit", "tasks.generate", "1", "1"), "--request-timeout"),
        (("add_consumer", "inference.other"), "its own model's queue"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_would_harm_running_requests_is_refused(command: tuple[str, ...], why: str, host: Host) -> None:
    assert why in host.control(*command)["error"]
    request = host.submit(1)
    wait_until(lambda: host.state(request) is State.SUCCEEDED, timeout=20)


def test_a_worker_stops_taking_and_goes_on(host: Host) -> None:
    [running] = host.start_long()
    host.control("cancel_consumer", queue_name(host.model))
    waiting = host.submit(1)
    host.store.cancel(running)
    wait_until(lambda: not host.redis.exists(redis_names.UNACKED))
    assert host.state(waiting) is State.QUEUED
    host.control("add_consumer", queue_name(host.model))
    wait_until(lambda: host.state(waiting) is State.SUCCEEDED, timeout=20)


# ---- messages that can't be read ----------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in GARBAGE if kind not in SEEN_BY_THE_TASK])
def test_what_nobody_can_read_is_kept_and_the_next_is_taken(kind: str, host: Host) -> None:
    host.redis.delete(redis_names.DEAD_LETTERS)
    before = host.store.num_dead_letters()
    garbage = GARBAGE[kind](host)
    text = garbage if isinstance(garbage, bytes) else json.dumps(garbage)
    host.redis.rpush(queue_name(host.model), text)  # the right end is served first
    request = host.submit(1)
    wait_until(lambda: host.state(request) is State.SUCCEEDED, timeout=20)
    wait_until(lambda: host.redis.llen(redis_names.DEAD_LETTERS) == 1)
    [kept] = host.redis.lrange(redis_names.DEAD_LETTERS, 0, -1)
    assert {"queue", "why", "time", "message"} <= set(
        json.loads(cast("bytes", kept).decode(errors="replace"))
    )
    assert host.store.num_dead_letters() == before + 1


def test_garbage_sent_to_all_workers_is_dropped(host: Host) -> None:
    topic = "/0.celery.pidbox"
    for garbage in ("no JSON", "[1]", "{}", '{"properties": 1}', json.dumps(message_of(host, body="x"))):
        assert host.redis.publish(topic, garbage) == 1
    assert "error" in host.control("pool_grow", "1")


# ---- the end ------------------------------------------------------------------------------------


def test_shutdown_by_remote_control_puts_requests_back(host: Host) -> None:
    [running] = host.start_long()
    assert host.process is not None
    subprocess.run(
        [sys.executable, "-m", "celery", "-A", host.app, "control", "--timeout", "1", "shutdown"],
        env=host.env,
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert host.process.wait(60) == 0, host.log.read_text()
    assert host.state(running) is State.QUEUED
    assert host.redis.llen(queue_name(host.model)) == 1
    host.log.write_text("")
    host.start()
    wait_until(lambda: host.state(running) is State.RUNNING, timeout=20)
