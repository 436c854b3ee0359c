"""Each request that is put back into the queue is counted once, by reason."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.integration.life import Life

pytestmark = pytest.mark.integration


@pytest.fixture
def life(redis: Redis) -> Life:
    return Life(redis)


def test_nothing_is_counted_for_a_request_that_runs_once(life: Life) -> None:
    life.run("r")
    assert life.store.num_requeued() == {}


def test_each_reason(life: Life) -> None:
    taken, _ = life.run("r")
    life.put_back(taken)
    assert life.store.num_requeued() == {"child_died": 1}
    taken, _ = life.run_next()
    life.put_back(taken, 0.0)
    taken, _ = life.run_next()
    life.lose_lease(taken)
    taken, _ = life.run_next()
    life.acknowledge(taken)
    assert life.janitor.tidy() == ["r"]
    counted = {"child_died": 1, "handed_back": 1, "lease_lost": 1, "found_by_janitor": 1}
    assert life.store.num_requeued() == counted


def test_what_no_child_had_yet_was_handed_back(life: Life) -> None:
    life.accept("r")
    taken = life.take()
    assert taken is not None
    life.put_back(taken)
    assert life.store.num_requeued() == {"handed_back": 1}


def test_putting_back_again_or_what_is_over_counts_nothing(life: Life) -> None:
    taken, _ = life.run("r")
    assert life.put_back(taken) == 1
    assert life.put_back(taken) == -1
    taken, _ = life.run_next()
    life.store.cancel("r")
    assert life.put_back(taken) == 0
    assert life.store.num_requeued() == {"child_died": 1}
