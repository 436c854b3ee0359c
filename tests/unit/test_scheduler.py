"""What a step computes, decided by the loads and the costs alone."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engine.costs.shape import StepCosts, padding
from tasks.engine.step.scheduler import Limits, plan

pytestmark = pytest.mark.unit

#: Measured with one-row kernels that work on four rows at a time (milliseconds).
FOURS = StepCosts(
    ((1, 4.2), (2, 7.2), (3, 9.6), (4, 8.5), (5, 11.9), (6, 13.9), (7, 16.0), (8, 12.1), (16, 16.1)), 0.7
)
#: A machine on which three rows cost more than four, but two don't.
SINGLES = StepCosts(((1, 4.1), (2, 10.8), (3, 15.3), (4, 13.8), (8, 20.5), (16, 29.4)), 1.4)
LINEAR = StepCosts(tuple((rows, 10.0 * rows) for rows in range(1, 17)), 10.0)


@dataclass(frozen=True)
class Load:
    """What the scheduler sees of a sequence."""

    slot: int
    remaining: int
    is_decoding: bool


def decoding(slot: int) -> Load:
    return Load(slot, remaining=1, is_decoding=True)


def prefilling(slot: int, remaining: int) -> Load:
    return Load(slot, remaining, is_decoding=False)


def test_every_decoding_sequence_gets_its_next_token_in_ascending_order():
    assert plan([decoding(3), decoding(0), decoding(2)], Limits()).decode == (0, 2, 3)


def test_prompts_that_arrive_together_are_prefilled_together():
    assert plan([prefilling(0, 40), prefilling(1, 60)], Limits()).prefill == ((0, 40), (1, 60))


def test_the_budget_goes_first_come_first_served():
    step = plan([prefilling(2, 400), prefilling(1, 300), prefilling(0, 50)], Limits(n_batch=512))
    assert step.prefill == ((1, 112), (2, 400))


def test_a_long_prompt_beside_decodes_at_most_doubles_the_step():
    step = plan([decoding(0), prefilling(1, 4000)], Limits(costs=FOURS))
    ((slot, chunk),) = step.prefill
    assert slot == 1
    assert chunk * FOURS.prefill_ms <= FOURS.decode_ms(1) < (chunk + 1) * FOURS.prefill_ms


def test_a_short_prompt_beside_decodes_is_not_cut_up():
    assert plan([decoding(0), prefilling(1, 20)], Limits(costs=FOURS)).prefill == ((1, 20),)


def test_a_short_prompt_waits_behind_a_long_one():
    assert plan([decoding(0), prefilling(1, 4000), prefilling(2, 20)], Limits(costs=FOURS)).prefill == (
        (1, 6),
    )


def test_seven_rows_are_padded_to_eight():
    step = plan([decoding(slot) for slot in range(7)], Limits(costs=FOURS))
    assert (step.decode, step.padding, step.num_rows) == (tuple(range(7)), 1, 8)


def test_nothing_is_padded_where_it_gains_nothing():
    assert [padding(rows, FOURS) for rows in (0, 1, 4, 8, 16, 20)] == [0] * 6
    assert [padding(rows, SINGLES) for rows in range(1, 5)] == [0, 0, 1, 0]
    assert not any(padding(rows, LINEAR) for rows in range(1, 17))


costs = st.lists(st.floats(0.1, 100), min_size=16, max_size=16).map(
    lambda values: StepCosts(tuple(enumerate(values, start=1)), 1.0)
)


@given(st.integers(1, 16), costs)
def test_a_padded_step_never_costs_more_than_the_plain_one(rows, table):
    assert table.decode_ms(rows + padding(rows, table)) <= table.decode_ms(rows)


@given(costs, st.integers(1, 40))
def test_costs_between_measured_sizes_lie_between_them(table, rows):
    sparse = StepCosts(table.decode[::5], 1.0)
    values = [ms for _, ms in sparse.decode]
    assert min(values) <= sparse.decode_ms(min(rows, 16)) <= max(values)


loads = st.lists(st.tuples(st.integers(1, 600), st.booleans()), max_size=16).map(
    lambda entries: [
        Load(slot, 1 if is_decoding else size, is_decoding)
        for slot, (size, is_decoding) in enumerate(entries)
    ]
)
limits = st.sampled_from([Limits(), Limits(costs=FOURS), Limits(costs=SINGLES), Limits(n_batch=32)])


@given(loads, limits)
def test_a_step_forgets_nobody_never_exceeds_a_batch_and_never_idles(entries, bounds):
    step = plan(entries, bounds)
    assert step.num_prefilled <= bounds.n_batch
    assert list(step.decode) == sorted(load.slot for load in entries if load.is_decoding)
    assert bool(entries) == bool(step.decode or step.prefill)


def test_short_prompts_never_exceed_the_batch():
    step = plan([prefilling(0, 30), prefilling(1, 5)], Limits(n_batch=32))
    assert step.prefill == ((0, 30), (1, 2))


@given(loads, limits)
def test_the_longest_waiting_prompt_always_gets_on(entries, bounds):
    waiting = [load for load in entries if not load.is_decoding]
    if waiting:
        assert waiting[0].slot in dict(plan(entries, bounds).prefill)


@given(loads, limits)
def test_repeating_steps_finishes_every_prompt(entries, bounds):
    remaining = {load.slot: load.remaining for load in entries if not load.is_decoding}
    for _ in range(sum(remaining.values()) + 1):
        pending = [Load(slot, left, False) for slot, left in remaining.items() if left]
        if not pending:
            break
        for slot, size in plan(pending, bounds).prefill:
            remaining[slot] -= size
    assert not any(remaining.values())
