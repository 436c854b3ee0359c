"""Real workers whose children die before they are ready: they end with one message and exit status 78."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.exit_status import HOPELESS
from tasks.store import last_words
from tasks.worker.ending.crash_loop import MAX_DEATHS
from tests.integration.http_rig import Api
from tests.integration.rig import QUEUE, Rig, worker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

CRASHING = {"app_module": "crash_app", "INFERENCE_WORKERS": "1"}


def told(rig: Rig) -> str:
    """The one message of a worker that has ended because it could not go on."""
    assert rig.process.wait(timeout=60) == HOPELESS, rig.log.read_text()
    log = rig.log.read_text()
    [line] = [line for line in log.splitlines() if "[critical" in line]
    [words] = last_words.read(rig.redis)
    assert words.text in line
    return words.text


@pytest.mark.parametrize(
    ("ending", "shown", "advice"),
    [
        ("SIGSEGV", "SIGSEGV (Segmentation fault)", "doctor --repair"),
        ("SIGILL", "SIGILL (Illegal instruction)", "doctor --repair"),
        ("SIGKILL", "SIGKILL (Killed)", "Lower --slots, --n-ctx or --workers"),
        ("3", "exit status 3", "Its log says why"),
    ],
)
def test_a_crash_loop_ends(
    ending: str, shown: str, advice: str, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    with worker(valkey_url, redis, tmp_path / "log", **CRASHING, TEST_ENDING=ending) as rig:
        text = told(rig)
    assert redis.llen("children") == MAX_DEATHS
    assert "Traceback" not in rig.log.read_text()
    assert f"{MAX_DEATHS} children in a row" in text
    assert f"by {shown} while computing the first batch." in text
    assert advice in text
    assert 0 < redis.ttl(redis_names.last_words(last_words.read(redis)[0].worker)) <= last_words.TTL_S


def test_a_child_that_becomes_ready_ends_the_count(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    healed = tmp_path / "healed"
    settings = {**CRASHING, "TEST_ENDING": "SIGSEGV", "TEST_HEALED": str(healed)}
    with worker(valkey_url, redis, tmp_path / "log", **settings) as rig:
        wait_until(lambda: redis.llen("children") >= 2, timeout=30)
        healed.touch()
        rig.hold("a")
        rig.let_go("a")
        wait_until(rig.is_done("a"), timeout=30)
        assert rig.process.poll() is None


def test_what_waits_is_put_back(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    with worker(valkey_url, redis, tmp_path / "log", **CRASHING, TEST_ENDING="SIGSEGV") as rig:
        rig.hold("a", "b")
        told(rig)
        assert redis.llen(QUEUE) == 2
        assert not rig.num_leases()


def test_a_healthy_siblings_requests_are_put_back(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    healed = tmp_path / "healed"
    healed.touch()
    settings = {**CRASHING, "INFERENCE_WORKERS": "2", "TEST_ENDING": "SIGSEGV", "TEST_HEALED": str(healed)}
    with worker(valkey_url, redis, tmp_path / "log", **settings) as rig:
        rig.hold("a", "b")
        (_, victim), _ = rig.wait_started(2)
        healed.unlink()
        wait_until(lambda: len(rig.pool()["children"]) == 2)
        os.kill(victim, signal.SIGKILL)
        told(rig)
        assert redis.llen(QUEUE) == 2
        assert not rig.num_leases()


def test_a_childs_own_reason_ends_the_worker_at_once(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    settings = {**CRASHING, "TEST_ENDING": str(HOPELESS), "TEST_REFUSAL": "there is no memory"}
    with worker(valkey_url, redis, tmp_path / "log", **settings) as rig:
        assert told(rig) == "there is no memory"
    assert redis.llen("children") < MAX_DEATHS


@pytest.mark.parametrize(("fate", "word"), [("gone", "is gone"), ("replaced", "has changed")])
def test_a_model_file_that_is_not_the_same_is_named(
    fate: str, word: str, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    model, healed, other = tmp_path / "model.gguf", tmp_path / "healed", tmp_path / "other.gguf"
    model.write_text("one")
    other.write_text("other")
    healed.touch()
    settings = {**CRASHING, "TEST_ENDING": "SIGBUS", "TEST_HEALED": str(healed)}
    with worker(valkey_url, redis, tmp_path / "log", **settings, INFERENCE_MODEL=str(model)) as rig:
        rig.hold("a")
        [(_, child)] = rig.wait_started(1)
        model.unlink() if fate == "gone" else other.rename(model)
        wait_until(lambda: f"The model file {model} {word}" in rig.log.read_text(), timeout=30)
        healed.unlink()
        os.kill(child, signal.SIGBUS)
        text = told(rig)
    assert f"The model file {model} {word} since the worker loaded it." in text
    assert len(re.findall(r"\[warning .*The model file", rig.log.read_text())) == 1


@pytest.mark.parametrize("dies", [False, True], ids=["seen in time", "a child dies first"])
def test_a_model_file_that_is_written_to_ends_the_worker(
    dies: bool, valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    model, healed = tmp_path / "model.gguf", tmp_path / "healed"
    model.write_text("one")
    healed.touch()
    settings = {**CRASHING, "TEST_ENDING": "SIGBUS", "TEST_HEALED": str(healed)}
    with worker(valkey_url, redis, tmp_path / "log", **settings, INFERENCE_MODEL=str(model)) as rig:
        rig.hold("a", "b")
        (_, child), _ = rig.wait_started(2)
        model.write_text("two")
        if dies:
            os.kill(child, signal.SIGBUS)
        text = told(rig)
        assert redis.llen(QUEUE) == 2
        assert not rig.num_leases()
    assert f"The model file {model} has changed since the worker loaded it." in text


def test_readyz_says_why_nothing_serves(valkey_url: str, redis: Redis, tmp_path: Path) -> None:
    with worker(valkey_url, redis, tmp_path / "log", **CRASHING, TEST_ENDING="SIGSEGV") as rig:
        text = told(rig)
    api = Api(valkey_url)
    try:
        wait_until(lambda: api.status("/readyz") == 503, timeout=30)
        [words] = last_words.read(redis)
        message = wait_until(lambda: message if "ended" in (message := reason(api)) else "")
        assert re.search(rf"Worker {re.escape(words.worker)} ended \d+ s ago: {re.escape(text)}", message)
        last_words.forget(redis, "m")
        assert wait_until(lambda: reason(api) == "No worker holds a model yet.")
    finally:
        api.stop()


def reason(api: Api) -> str:
    return str(api.http.get("/readyz").json()["error"]["message"])
