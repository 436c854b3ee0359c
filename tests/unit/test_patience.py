"""How a channel that Redis refuses something waits."""

import pytest
from redis import ResponseError

from tasks.queue.patience import Patience
from tasks.store.board import Board

pytestmark = pytest.mark.unit


def test_it_waits_until_the_next_success() -> None:
    patience = Patience(Board(), "Taking messages")
    told = [patience.may_try]
    patience.note(ResponseError("LOADING"))
    told.append(patience.may_try)
    patience.over()
    assert [*told, patience.may_try] == [True, False, True]


def test_a_new_channel_ends_the_trouble_that_the_last_one_noted() -> None:
    board = Board()
    Patience(board, "Taking messages").note(ResponseError("MISCONF"))
    assert board.texts
    Patience(board, "Taking messages").over()
    assert not board.texts
