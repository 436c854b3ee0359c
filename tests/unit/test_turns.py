"""Steps that leave some sequences out: never slower with more, and fair to all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.engine.costs.shape import (
    MIN_PAUSE_GAIN,
    StepCosts,
    cheapest,
    num_rows,
    plain,
    quickest,
    tokens_per_ms,
)
from tasks.engine.load import Load
from tasks.engine.scheduler import Decode, Limits, Step, plan
from tasks.engine.turns import CELLS_PER_LAG, MAX_CELLS, MAX_LAG, exchange
from tests.unit.test_scheduler import FOURS, LINEAR, SINGLES, costs

pytestmark = pytest.mark.unit

#: Measured on two cores with kernels of four rows, where no grouping makes five rows as quick as four.
STEEP = StepCosts(
    ((1, 6.1), (2, 10.2), (3, 15.6), (4, 12.5), (5, 17.9), (6, 18), (7, 22.7), (8, 23), (12, 38), (16, 46)),
    2.5,
)
TABLES = (FOURS, SINGLES, LINEAR, STEEP)


def speed(rows: int, table: StepCosts) -> float:
    return tokens_per_ms(quickest(rows, table), table)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("rows", range(1, 24))
def test_a_sequence_more_never_lowers_tokens_per_second(rows, table):
    assert speed(rows + 1, table) >= speed(rows, table) * (1 - MIN_PAUSE_GAIN)


@given(st.integers(1, 16), costs)
def test_that_holds_whatever_steps_cost(rows, table):
    most = max(speed(fewer, table) for fewer in range(1, rows + 1))
    assert speed(rows + 1, table) >= most * (1 - MIN_PAUSE_GAIN) - 1e-9


@given(st.integers(1, 16), costs)
def test_fewer_than_half_pause_and_only_where_that_is_quicker(rows, table):
    groups = quickest(rows, table)
    assert rows / 2 < num_rows(groups) <= rows
    if num_rows(groups) < rows:
        everyone = tokens_per_ms(cheapest(rows, table), table)
        assert tokens_per_ms(groups, table) * (1 - MIN_PAUSE_GAIN) > everyone


def test_one_pauses_only_where_the_others_are_quicker_by_more_than_noise():
    assert quickest(5, STEEP) == plain(4)
    assert quickest(6, STEEP) == plain(6)
    assert quickest(7, STEEP) == plain(7)
    assert quickest(9, STEEP) == plain(9)
    assert all(quickest(rows, LINEAR) == plain(rows) for rows in range(1, 17))


def decoding(*slots: int, **state) -> list[Load]:
    return [Load(slot, 1, True, **state) for slot in slots]


def test_all_decode_where_their_slots_have_a_gap():
    assert plan(decoding(0, 1, 2, 4, 5), Limits(costs=STEEP)).paused == ()
    beside = [*decoding(0, 1, 3, 4, 5), Load(2, 40, False)]
    assert plan(beside, Limits(costs=STEEP)).paused == ()


def test_all_decode_where_one_has_many_cells():
    loads = [*decoding(0, 1, 2, 3), *decoding(4, computed=MAX_CELLS + 1)]
    assert plan(loads, Limits(costs=STEEP)).paused == ()


def test_all_decode_where_places_cannot_be_changed():
    assert plan(decoding(*range(5)), Limits(costs=STEEP, pauses=False)).paused == ()


def test_prefill_beside_is_sized_by_those_that_decode():
    loads = [*decoding(*range(5)), Load(5, 400, False)]
    step = plan(loads, Limits(costs=STEEP))
    assert step.decode == (Decode((1, 2, 3, 4)),)
    assert step.prefill == ((5, int(12.5 / 2.5)),)


def test_the_more_cells_there_are_to_move_the_longer_they_stay():
    few, many = (
        [Load(slot, 1, True, computed, lag) for slot, lag in enumerate((MAX_LAG, -1, 0, 0, 0))]
        for computed in (100, int(MAX_LAG) * CELLS_PER_LAG)
    )
    assert exchange(few, 1) == (0, 1)
    assert exchange(many, 1) is None


class Running:
    """Sequences that decode for ever, by the plans."""

    def __init__(self, num: int, table: StepCosts) -> None:
        self.limits = Limits(costs=table)
        self.names = list(range(num))  # by slot
        self.loads = {name: Load(name, 1, True) for name in self.names}
        self.tokens = dict.fromkeys(self.names, 0)
        self.pauses: list[set[int]] = []
        self.num_exchanges = 0

    def step(self) -> Step:
        step = plan([self.loads[name] for name in self.names], self.limits)
        decoded = [slot for batch in step.decode for slot in batch.slots]
        assert sorted([*decoded, *step.paused]) == [self.loads[name].slot for name in self.names]
        assert decoded == list(range(decoded[0], decoded[0] + len(decoded)))
        self._note(step, set(decoded))
        if step.exchange is not None:
            self._exchange(*step.exchange)
        return step

    def arrive(self, name: int) -> None:
        """After the last slot."""
        self.loads[name] = Load(self.loads[self.names[-1]].slot + 1, 1, True)
        self.names.append(name)
        self.tokens[name] = 0

    def leave(self, name: int) -> None:
        """The others close up, as if slots had been free in between."""
        self.names.remove(name)
        del self.loads[name], self.tokens[name]
        for slot, each in enumerate(self.names):
            self.loads[each] = replace(self.loads[each], slot=slot)

    def _note(self, step: Step, decoded: set[int]) -> None:
        for name, load in self.loads.items():
            has_paused = load.slot not in decoded
            self.tokens[name] += not has_paused
            lag = load.lag + step.share - (not has_paused)
            self.loads[name] = replace(load, lag=lag, has_paused=has_paused)
        self.pauses.append({name for name, load in self.loads.items() if load.has_paused})

    def _exchange(self, a: int, b: int) -> None:
        self.num_exchanges += 1
        low = self.loads[self.names[0]].slot
        i, j = a - low, b - low
        self.names[i], self.names[j] = self.names[j], self.names[i]
        for name, slot in ((self.names[i], a), (self.names[j], b)):
            self.loads[name] = replace(self.loads[name], slot=slot)


@settings(deadline=None)
@given(st.integers(1, 20), st.one_of(st.sampled_from(TABLES), costs), st.integers(1, 400))
def test_all_get_the_same_share_and_nobody_pauses_twice_in_a_row(num, table, num_steps):
    running = Running(num, table)
    for _ in range(num_steps):
        running.step()
    assert all(not before & after for before, after in pairwise(running.pauses))
    spread = max(running.tokens.values()) - min(running.tokens.values())
    assert spread <= MAX_LAG + num / 2 + 1


def test_places_are_changed_seldom():
    running = Running(5, STEEP)
    for _ in range(800):
        running.step()
    assert sum(map(len, running.pauses)) == 800
    assert 0 < running.num_exchanges <= 800 / 7


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["step", "arrive", "leave"]), st.integers(0, 7)), max_size=120),
    st.one_of(st.sampled_from(TABLES), costs),
)
def test_nobody_starves_when_others_come_and_go(moves, table):
    running, running_since = Running(5, table), dict.fromkeys(range(5), 0)
    for number, (what, which) in enumerate(moves, start=10):
        if what == "arrive" and len(running.names) < 8:
            running.arrive(number)
            running_since[number] = len(running.pauses)
        elif what == "leave" and len(running.names) > 1:
            running.leave(running.names[which % len(running.names)])
        running.step()
    for name, tokens in running.tokens.items():
        num_steps = len(running.pauses) - running_since[name]
        assert tokens >= num_steps / 3 - 1
