"""The child in which one more request costs least."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.worker.pool.placement import NOISE, Crew, advised, tokens_per_s

pytestmark = pytest.mark.unit


def table(**by_threads: dict[int, float]) -> CostTable:
    found = {int(name[1:]): StepCosts(tuple(ms.items()), 1.0) for name, ms in by_threads.items()}
    return CostTable(tuple(sorted(found.items())))


#: Measured on two cores: kernels of four rows, and one thread that takes twice as long.
FOURS = table(t1={1: 9, 2: 17, 3: 26, 4: 23, 8: 42}, t2={1: 5.6, 2: 9.2, 3: 14.4, 4: 12.5, 8: 22})
#: The same on a machine where one thread computes a row as quickly as two threads.
QUICK_ROWS = table(
    t1={1: 4.1, 2: 10.8, 3: 15.3, 4: 13.8, 8: 20.5}, t2={1: 4.2, 2: 7.2, 3: 9.6, 4: 8.5, 8: 12.1}
)
PAIR = Crew(slots=8, threads=2)


def placed(num: int, costs: CostTable | None, crew: Crew = PAIR, children: int = 2) -> list[int]:
    """How many requests each child has, after ``num`` went one by one to the freest advised child."""
    taken = dict.fromkeys(range(children), 0)
    for _ in range(num):
        taken[min(advised(taken, crew, costs), key=lambda child: taken[child])] += 1
    return sorted(taken.values(), reverse=True)


def test_without_costs_all_are_as_good():
    assert set(advised({0: 3, 1: 0, 2: 8}, PAIR, None)) == {0, 1}
    assert placed(8, None) == [4, 4]


def test_an_idle_workers_children_are_all_the_same():
    assert set(advised({0: 0, 1: 0}, PAIR, FOURS)) == {0, 1}


@pytest.mark.parametrize("num", range(2, 9))
def test_requests_share_a_child_where_rows_together_are_cheap(num):
    assert placed(num, FOURS) == [num, 0]


def test_two_requests_are_spread_where_one_row_needs_no_second_thread():
    assert placed(2, QUICK_ROWS) == [1, 1]


def test_four_and_eight_reach_what_one_child_with_all_threads_does():
    for num in (4, 8):
        assert tokens_per_s(placed(num, FOURS), 2, FOURS) >= 0.95 * tokens_per_s([num], 2, FOURS)


def test_a_request_leaves_a_poor_placement_for_a_better_one():
    assert advised({0: 3, 1: 1}, PAIR, FOURS) == [0]


def test_where_every_row_costs_the_same_the_freest_is_chosen():
    linear = table(t1={1: 10, 8: 80}, t2={1: 5, 8: 40})
    assert placed(8, linear) == [4, 4]


def test_children_that_are_full_are_never_chosen():
    assert list(advised({0: 8, 1: 7}, PAIR, FOURS)) == [1]
    assert placed(10, FOURS) == [8, 2]


steps = st.lists(st.floats(0.1, 100), min_size=8, max_size=8).map(
    lambda values: StepCosts(tuple(enumerate(values, start=1)), 1.0)
)
tables = st.tuples(steps, steps, steps).map(
    lambda found: CostTable(tuple(zip((1, 3, 6), found, strict=True)))
)
loads = st.lists(st.integers(0, 8), min_size=1, max_size=5).map(lambda nums: dict(enumerate(nums)))


@given(loads, tables)
def test_the_advised_have_room_and_are_never_slower_than_the_freest(taken, costs):
    crew = Crew(slots=8, threads=6)
    assume(min(taken.values()) < crew.slots)

    def speed(child: int) -> float:
        return tokens_per_s({**taken, child: taken[child] + 1}.values(), crew.threads, costs)

    chosen = advised(taken, crew, costs)
    assert chosen
    assert all(taken[child] < crew.slots for child in chosen)
    freest = speed(min(taken, key=lambda child: taken[child]))
    assert all(speed(child) >= freest * (1 - NOISE) - 1e-9 for child in chosen)
