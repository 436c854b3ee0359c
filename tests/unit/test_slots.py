"""Which slot a sequence takes, and which slot's cells it starts from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engine.slots import MIN_SHARED, Placement, SlotTable, common_prefix

pytestmark = pytest.mark.unit

LONG = tuple(range(100, 100 + 2 * MIN_SHARED))


def test_taken_slots_stay_next_to_each_other():
    table = SlotTable(4)
    taken = [table.take((1,)).slot for _ in range(3)]
    assert max(taken) - min(taken) == 2
    middle = sorted(taken)[1]
    table.release(middle, ())
    assert table.take((1,)).slot == middle


def test_the_common_prefix_is_kept_but_never_the_last_token():
    table = SlotTable(1)
    assert table.take((1, 2, 3)) == Placement(0)
    table.release(0, (1, 2, 3, 4))
    assert table.take((1, 2, 9)) == Placement(0, kept=2)
    table.release(0, (1, 2, 3, 4))
    assert table.take((1, 2, 3)) == Placement(0, kept=2)


def test_alone_a_conversation_finds_the_slot_of_its_earlier_turn():
    table = SlotTable(3)
    for tokens in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
        table.release(table.take(tokens).slot, tokens)
    place = table.take((4, 5, 6, 7))
    assert place.kept == 3


def test_the_least_recently_used_slot_is_given_up_first():
    table = SlotTable(2)
    first = table.take((1, 2)).slot
    table.release(first, (1, 2))
    second = table.take((3, 4)).slot
    table.release(second, (3, 4))
    assert second != first
    assert table.take((5, 6)).slot == first


def test_a_prefix_that_is_just_being_computed_is_waited_for():
    table = SlotTable(3)
    first = table.take([*LONG, 1])
    second = table.take([*LONG, 2])
    assert first == Placement(first.slot)
    assert second == Placement(second.slot, source=first.slot, shared=len(LONG))


def test_a_little_more_is_not_worth_a_copy():
    table = SlotTable(2)
    table.take([*LONG[: MIN_SHARED - 1], 1])
    assert table.take([*LONG[: MIN_SHARED - 1], 2]).source is None


def test_what_a_sequence_adds_counts_too():
    table = SlotTable(2)
    tokens = list(LONG)
    first = table.take(tokens)
    tokens += [7] * MIN_SHARED
    assert table.has(first.slot, [*LONG, *[7] * MIN_SHARED, 1]) == len(LONG) + MIN_SHARED


def test_conversations_that_share_a_system_prompt_keep_a_slot_each():
    table = SlotTable(8)
    talks = [[*LONG, *range(1000 * i, 1000 * i + 50)] for i in range(6)]
    for turn in range(4):
        for i, talk in enumerate(talks):
            place = table.take(talk)
            if turn:
                assert place.kept == len(talk) - 50, "a turn finds all of the turns before it"
            table.release(place.slot, talk)
            talks[i] = [*talk, *range(100_000 * (turn + 1) + 1000 * i, 100_000 * (turn + 1) + 1000 * i + 50)]


def test_a_slot_with_a_short_tail_is_taken_rather_than_copied():
    table = SlotTable(2)
    table.release(table.take(LONG).slot, [*LONG, 1, 2])
    assert table.take([*LONG, 3]).source is None


def test_without_reuse_everything_starts_from_nothing():
    table = SlotTable(2, reuses=False)
    table.release(table.take(LONG).slot, LONG)
    assert table.take(LONG).kept == 0


def test_without_rewinding_only_an_idle_slot_is_reused_and_only_whole():
    table = SlotTable(2, rewinds=False)
    first = table.take([*LONG, 1])
    assert table.take([*LONG, 2]) == Placement(1 - first.slot)
    table.release(first.slot, LONG)
    assert table.take([*LONG, 3]) == Placement(first.slot, kept=len(LONG))
    table.release(first.slot, (*LONG, 3))
    assert table.take([*LONG, 4]) == Placement(first.slot)


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@given(tokens, tokens)
def test_the_common_prefix_is_the_longest(a, b):
    size = common_prefix(a, b)
    assert a[:size] == b[:size]
    assert size in (len(a), len(b)) or a[size] != b[size]


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), tokens, st.sampled_from("ab")), max_size=30))
def test_a_placement_never_promises_cells_that_are_not_there(num_slots, moves):
    table = SlotTable(num_slots)
    cells: dict[int, list[int]] = {}
    owners: dict[int, str] = {}
    taken: list[tuple[int, list[int]]] = []
    for is_release, prompt, owner in moves:
        if is_release and taken:
            table.release(*taken.pop(0))
        elif table.num_free:
            place = table.take(prompt, owner)
            assert place.slot not in {slot for slot, _ in taken}
            assert prompt[: place.kept] == cells.get(place.slot, [])[: place.kept]
            assert place.kept < len(prompt)
            if place.source is not None:
                assert place.source != place.slot
                assert place.shared >= place.kept + MIN_SHARED
                assert prompt[: place.shared] == cells[place.source][: place.shared]
                assert owners[place.source] == owner
            assert not place.kept or owners[place.slot] == owner
            cells[place.slot], owners[place.slot] = prompt, owner
            taken.append((place.slot, prompt))
    assert table.num_free == num_slots - len(taken)


def test_owners_share_nothing():
    table = SlotTable(3)
    first = table.take([*LONG, 1], "a")
    assert table.take([*LONG, 1], "b").source is None
    assert table.has(first.slot, [*LONG, 1, 2], "b") == table.has(first.slot, [*LONG, 1, 2]) == 0
    assert table.take([*LONG, 2], "a").source == first.slot
    table.release(first.slot, LONG)
    again = table.take([*LONG, 3], "b")
    assert (again.slot, again.kept) == (first.slot, 0)
