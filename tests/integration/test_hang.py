"""Real workers with children that live but get nowhere: they are killed, and their tasks run elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis import Redis

from tests.integration.rig import Rig, worker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

POOLS = pytest.mark.parametrize(
    "pool", [(), ("--pool=processes", "--concurrency=2")], ids=["slots", "processes"]
)


def blamed(rig: Rig) -> list[int]:
    """The children that were killed because they got nowhere."""
    return [int(pid) for pid in re.findall(r"child (\d+) has made no progress for 2 s", rig.log.read_text())]


@POOLS
def test_a_child_that_gets_nowhere_is_killed_and_its_task_runs_again(
    pool: tuple[str, ...], valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    hung = tmp_path / "hung"
    settings = {"INFERENCE_LEASE": "1", "TEST_HUNG": str(hung)}
    with worker(valkey_url, redis, tmp_path / "log", *pool, **settings) as rig:
        rig.hold("a")
        [(_, child)] = rig.wait_started(1)
        hung.touch()
        wait_until(lambda: blamed(rig), timeout=60)
        hung.unlink()
        (_, first), (_, second) = wait_until(lambda: rig.started()[1:] and rig.started()[:2], timeout=60)
        assert (first, second != child) == (child, True)
        rig.let_go("a", "a")
        wait_until(rig.is_done("a"), timeout=60)


@POOLS
def test_only_children_with_work_are_killed(
    pool: tuple[str, ...], valkey_url: str, redis: Redis, tmp_path: Path
) -> None:
    hung = tmp_path / "hung"
    settings = {"INFERENCE_LEASE": "1", "TEST_HUNG": str(hung)}
    with worker(valkey_url, redis, tmp_path / "log", *pool, **settings) as rig:
        rig.hold("a")
        rig.wait_started(1)
        hung.touch()
        # None of them beats any more, but only one at a time has something to do.
        wait_until(lambda: len(blamed(rig)) >= 3, timeout=60)
        hung.unlink()
        assert set(blamed(rig)) <= {pid for _, pid in rig.started()}
