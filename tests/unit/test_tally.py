"""The counts of a child stay in the sums, also after its death."""

from __future__ import annotations

import os
import signal

import pytest

from tasks.telemetry.metric_names import WORKER_LAYOUT
from tasks.telemetry.tally import MAX_ROWS, Layout, SharedTallies, Tally

pytestmark = pytest.mark.unit

LAYOUT = Layout(("steps", "tokens"), {"size": (1, 4), "seconds": (0.5,)})


def test_counters_add_up():
    tally = Tally(LAYOUT)
    tally.add("steps")
    tally.add("tokens", 3)
    tally.add("tokens", 2)
    assert tally.counts(LAYOUT.counters) == {"steps": 1, "tokens": 5}


def test_a_value_is_in_the_first_bucket_that_reaches_it():
    tally = Tally(LAYOUT)
    for value in (0.5, 1, 1.5, 4, 100):
        tally.observe("size", value)
    found = tally.distribution("size")
    assert dict(found.cumulative) == {1: 2, 4: 4}
    assert (found.num, found.total) == (5, 107)
    assert tally.distribution("seconds").num == 0


@pytest.mark.parametrize("use", [lambda tally: tally.add("size"), lambda tally: tally.observe("steps", 1)])
def test_names_that_the_layout_lacks_are_refused(use):
    with pytest.raises(KeyError):
        use(Tally(LAYOUT))


def test_every_number_has_a_place_of_its_own():
    tally = Tally(WORKER_LAYOUT)
    for number, name in enumerate(WORKER_LAYOUT.counters, 1):
        tally.add(name, number)
    for name, bounds in WORKER_LAYOUT.histograms.items():
        for value in (*bounds, bounds[-1] * 2):
            tally.observe(name, value)
    names = WORKER_LAYOUT.counters
    assert tally.counts(names) == {name: number for number, name in enumerate(names, 1)}
    for name, bounds in WORKER_LAYOUT.histograms.items():
        found = tally.distribution(name)
        assert found.cumulative == tuple((bound, number) for number, bound in enumerate(bounds, 1))
        assert found.num == len(bounds) + 1


def in_a_killed_child(shared: SharedTallies, index: int, number: int) -> None:
    pid = os.fork()
    if not pid:
        row = shared.row(index)
        row.add("tokens", number)
        row.observe("seconds", number)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def test_a_killed_childs_counts_are_kept_and_its_replacements_added():
    shared = SharedTallies(LAYOUT)
    for index, number in ((0, 5), (1, 7), (0, 11)):
        in_a_killed_child(shared, index, number)
    assert shared.row(0).counts(["tokens"]) == {"tokens": 16}
    total = shared.total(3)
    assert total.counts(["tokens"]) == {"tokens": 23}
    assert total.distribution("seconds").num == 3
    assert shared.total(0).counts(["tokens"]) == {"tokens": 0}


def test_rows_end_somewhere():
    shared = SharedTallies(LAYOUT)
    shared.row(MAX_ROWS - 1).add("steps")
    with pytest.raises(IndexError, match=str(MAX_ROWS)):
        shared.row(MAX_ROWS)
