"""A real worker whose children have noted what steps cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis import Redis

from tests.integration.rig import SLOTS, WORKERS, worker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def test_tasks_go_where_the_children_say_that_it_costs_least(valkey_url: str, tmp_path: Path) -> None:
    costs = {
        "by_threads": [
            [1, {"decode": [[1, 9], [4, 23]], "prefill_ms": 3}],
            [2, {"decode": [[1, 6], [4, 12]], "prefill_ms": 2}],
        ]
    }
    names = [f"t{n}" for n in range(SLOTS + 1)]
    with (
        Redis.from_url(valkey_url) as redis,
        worker(valkey_url, redis, tmp_path / "log", TEST_STEP_COSTS=json.dumps(costs)) as rig,
    ):
        redis.flushall()
        wait_until(lambda: sum(rig.free()) == WORKERS * SLOTS)
        rig.hold(*names)
        rig.wait_started(len(names))
        assert sorted(rig.free()) == [0, SLOTS - 1]
        rig.let_go(*names)
        wait_until(rig.is_done(*names))
