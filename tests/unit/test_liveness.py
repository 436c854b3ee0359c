"""Children that say nothing, and prompts that hang or are not wanted any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import inf
from threading import Event as Flag

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contract.messages import Sampling
from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.engine.llama.context import Row
from tasks.engine.sequence import Job
from tasks.worker.liveness.pulse import Pulse, Pulses
from tasks.worker.liveness.silence import SilenceWatch
from tests.unit.test_engine_loop import FakeContext, Run
from tests.waiting import wait_until

pytestmark = pytest.mark.unit

PATIENCE, INTERVAL = 20.0, 1.0


def looks(watch: SilenceWatch, beats: Callable[[int], dict[int, int]], times: list[float]) -> list[int]:
    """The children that are blamed at any look."""
    return sorted({child for turn, now in enumerate(times) for child in watch.look(beats(turn), now)})


def every(seconds: float, num: int) -> list[float]:
    return [turn * seconds for turn in range(num)]


@pytest.fixture
def watch() -> SilenceWatch:
    return SilenceWatch(PATIENCE, INTERVAL)


def test_a_child_with_work_that_is_silent_is_blamed_after_the_patience(watch):
    assert looks(watch, lambda _: {1: 7}, every(INTERVAL, 20)) == []
    assert watch.look({1: 7}, 20.0) == [1]


def test_a_child_that_beats_is_not_blamed(watch):
    assert looks(watch, lambda turn: {1: turn // 10}, every(INTERVAL, 100)) == []


def test_a_child_without_work_is_not_blamed_and_silence_counts_from_its_first_work_on(watch):
    assert looks(watch, lambda turn: {} if turn < 50 else {1: 7}, every(INTERVAL, 70)) == []


def test_a_child_that_takes_the_place_of_another_begins_anew(watch):
    assert looks(watch, lambda turn: {turn // 15: 7}, every(INTERVAL, 100)) == []


def test_a_pause_of_the_whole_machine_blames_nobody(watch):
    assert looks(watch, lambda _: {1: 7, 2: 8}, [*every(INTERVAL, 10), 3600.0, 3601.0]) == []


@settings(deadline=None)
@given(st.lists(st.floats(min_value=0, max_value=1e4), max_size=40).map(sorted))
def test_so_many_looks_are_needed_whatever_the_clock_says(times):
    watch = SilenceWatch(PATIENCE, INTERVAL)
    blamed = [bool(watch.look({1: 7}, now)) for now in times]
    assert not any(blamed[: int(PATIENCE / INTERVAL)])


def test_a_pulse_beats_while_its_process_gets_on():
    pulses, gets_on = Pulses(), True
    pulse = Pulse(lambda: pulses.beat(3), lambda: gets_on)
    pulse.start()
    wait_until(lambda: (pulses.read(3, os.getpid()) or 0) > 1)
    gets_on = False
    pulse.close()
    assert pulses.read(3, os.getpid() + 1) is None
    assert pulses.read(2, os.getpid()) is None


class StuckContext(FakeContext):
    """Computes only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck, self.entered, self.let_go = False, Flag(), Flag()

    def decode(self, rows: Sequence[Row]) -> None:
        if self.is_stuck:
            self.entered.set()
            assert self.let_go.wait(30)
        super().decode(rows)


@pytest.mark.parametrize("table", [None, CostTable(((1, StepCosts(((1, 10.0), (4, 20.0)), 5.0)),))])
def test_a_step_that_does_not_end_is_overdue_and_an_idle_engine_never_is(table):
    context, now = StuckContext(), [100.0]
    measure = None if table is None else lambda _: table
    run = Run(context, clock=lambda: now[0], measure=measure)
    assert run.engine.due == inf
    context.is_stuck = True
    run.engine.submit(Job("a", (1, 2, 3), 2, Sampling(temperature=0), ignore_eos=True))
    assert context.entered.wait(30)
    now[0] = run.engine.due + 1
    assert now[0] - 100 < 60
    context.let_go.set()
    wait_until(lambda: "a" in run.endings)
    wait_until(lambda: run.engine.due == inf)
    run.engine.close()
