"""A full disk: the service says so and refuses; what runs ends when there is space; nothing dies of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from service.supervisor.programs.probe import answers_200
from service.supervisor.programs.valkey import url_of
from tasks.store.requests import RequestStore
from tests.chaos.forms import forms
from tests.chaos.small_disk import SmallDisk, fill, is_full, why_not
from tests.e2e.serving import Served
from tests.waiting import wait_until

SHAPE = ("--workers", "1", "--slots", "2", "--threads", "1", "--n-ctx", "2048", "--lease", "4")
LONG = 1500


@pytest.fixture
def disk(tmp_path: Path) -> SmallDisk:
    folder = tmp_path / "disk"
    folder.mkdir()
    if reason := why_not(folder):
        pytest.skip(reason)
    return SmallDisk(folder)


class OnSmallDisk(Served):
    """A service whose state folder is a small disk; what it prints is elsewhere."""

    def prefix(self) -> tuple[str, ...]:
        return SmallDisk(self.state).prefix


@pytest.fixture
def served(disk: SmallDisk, model_path: Path) -> Iterator[Served]:
    """State, logs and caches are on the small disk."""
    cache = {"XDG_CACHE_HOME": str(disk.folder / "cache"), "XDG_CONFIG_HOME": str(disk.folder / "config")}
    served = OnSmallDisk(disk.folder, *SHAPE, "--model", str(model_path), port=None, **cache)
    try:
        yield served.wait_ready()
    finally:
        tell(served)  # shown if the test fails
        served.end()


def tell(served: Served) -> None:
    """Print what the service says of itself; its logs vanish with the disk."""
    with suppress(httpx.TransportError):
        print(httpx.get(f"{served.url}/readyz").text)
    for log in sorted(SmallDisk(served.state).seen_by(served.process.pid).glob("logs/*.log")):
        print(log.name, *log.read_text(errors="replace").splitlines()[-15:], sep="\n")
    print(served.output.read_text())


def post(served: Served, tokens: int = 1) -> httpx.Response:
    body = {"prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    headers = {"Prefer": "respond-async"}
    return httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=30)


def refusal(served: Served) -> tuple[int, Any]:
    try:
        answer = post(served)
    except httpx.TransportError:  # no process listens at this moment
        return 0, None
    return answer.status_code, answer.json().get("error", {}).get("code")


def look(served: Served, request_id: str) -> dict[str, Any]:
    answer = httpx.get(f"{served.url}/v1/requests/{request_id}", timeout=30)
    return dict(answer.json())


@forms("num_rounds", 1, "CHAOS_FULL_DISKS", 5)
def test_a_full_disk_is_told_and_survived(num_rounds: int, disk: SmallDisk, served: Served):
    folder = disk.seen_by(served.process.pid)
    store = RequestStore(Redis.from_url(url_of(folder / "valkey" / "valkey.sock")))
    for _ in range(num_rounds):
        long = str(post(served, LONG).json()["id"])
        wait_until(lambda: store.read_log(long))  # noqa: B023
        ballast = fill(folder)
        wait_until(lambda: refusal(served) == (503, "store_full"), timeout=30)
        assert "disk is full" in post(served).json()["error"]["message"]
        check_restarts(served)
        assert is_full(folder)
        assert look(served, long)["status"] == "running"
        ballast.unlink()
        wait_until(lambda: look(served, long)["status"] == "succeeded", timeout=60)  # noqa: B023
        assert sum(len(event.tokens) for event in store.read_log(long)) == LONG
        wait_until(lambda: refusal(served)[0] == 202, timeout=30)
        wait_until(answers_200(f"{served.url}/readyz"), timeout=30)
    assert not re.search("The (API|Valkey) ended", served.output.read_text())


def check_restarts(served: Served) -> None:
    """An API process that starts now starts, and says the same."""
    parent = served.part("gunicorn")
    [old] = parent.children()
    old.send_signal(signal.SIGKILL)
    wait_until(lambda: [child for child in parent.children() if child.pid != old.pid])
    wait_until(lambda: refusal(served) == (503, "store_full"), timeout=30)
