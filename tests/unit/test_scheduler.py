"""What a step computes, from the loads alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engine.scheduler import Limits, Load, plan

pytestmark = pytest.mark.unit


def decoding(slot: int) -> Load:
    return Load(slot, remaining=1, is_decoding=True)


def prefilling(slot: int, remaining: int) -> Load:
    return Load(slot, remaining, is_decoding=False)


def test_every_decoding_sequence_gets_its_next_token_in_ascending_order():
    assert plan([decoding(3), decoding(0), decoding(2)], Limits()).decode == (0, 2, 3)


def test_prompts_that_arrive_together_are_prefilled_together():
    assert plan([prefilling(0, 40), prefilling(1, 60)], Limits()).prefill == ((0, 40), (1, 60))


def test_the_budget_goes_first_come_first_served():
    step = plan([prefilling(2, 400), prefilling(1, 300), prefilling(0, 5)], Limits(n_batch=512))
    assert step.prefill == ((1, 112), (2, 400))


def test_a_long_prompt_is_cut_smaller_beside_decodes():
    step = plan([decoding(0), prefilling(1, 4000)], Limits(n_batch=512, chunk_beside_decodes=64))
    assert step.decode == (0,)
    assert step.prefill == ((1, 64),)


loads = st.lists(st.tuples(st.integers(1, 600), st.booleans()), max_size=16).map(
    lambda entries: [
        Load(slot, 1 if is_decoding else size, is_decoding)
        for slot, (size, is_decoding) in enumerate(entries)
    ]
)


@given(loads)
def test_a_step_never_exceeds_its_budgets_and_never_idles(entries):
    limits = Limits(n_batch=512, chunk_beside_decodes=128)
    step = plan(entries, limits)
    assert sum(size for _, size in step.prefill) <= (128 if step.decode else 512)
    assert set(step.decode) == {load.slot for load in entries if load.is_decoding}
    assert bool(entries) == bool(step.decode or step.prefill)


@given(loads)
def test_repeating_steps_finishes_every_prompt(entries):
    remaining = {load.slot: load.remaining for load in entries if not load.is_decoding}
    for _ in range(sum(remaining.values()) + 1):
        pending = [Load(slot, left, False) for slot, left in remaining.items() if left]
        if not pending:
            break
        for slot, size in plan(pending, Limits()).prefill:
            remaining[slot] -= size
    assert not any(remaining.values())
