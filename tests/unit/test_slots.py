"""Which slot a sequence takes, and what it can keep there."""

import pytest

from tasks.engine.slots import SlotTable, common_prefix

pytestmark = pytest.mark.unit


def test_the_lowest_free_slot_is_taken():
    table = SlotTable(3)
    assert [table.take((1,))[0] for _ in range(3)] == [0, 1, 2]
    table.release(1, ())
    table.release(0, ())
    assert table.take((1,))[0] == 0


def test_the_common_prefix_is_kept_but_never_the_last_token():
    table = SlotTable(1)
    slot, reused = table.take((1, 2, 3))
    assert reused == 0
    table.release(slot, (1, 2, 3, 4))
    assert table.take((1, 2, 9)) == (0, 2)
    table.release(0, (1, 2, 3, 4))
    assert table.take((1, 2, 3)) == (0, 2)


@pytest.mark.parametrize(
    ("a", "b", "size"), [((), (1,), 0), ((1, 2), (1, 3), 1), ((1, 2), (1, 2, 3), 2), ((2,), (1,), 0)]
)
def test_common_prefix(a, b, size):
    assert common_prefix(a, b) == common_prefix(b, a) == size
