"""When an engine computes with one thread although it has more."""

import pytest

from tasks.engine.costs.governor import FIRST_S, MAX_S, Governor

pytestmark = pytest.mark.unit


def test_steps_as_fast_as_they_should_be_keep_their_threads():
    governor = Governor()
    for second in range(10):
        governor.observe(2, took_ms=9, alone_ms=10, now=second)
        assert governor.choose(2, second) == 2


def test_one_slow_step_is_no_sign():
    governor = Governor()
    governor.observe(2, took_ms=900, alone_ms=10, now=0)
    governor.observe(2, took_ms=9, alone_ms=10, now=1)
    governor.observe(2, took_ms=900, alone_ms=10, now=2)
    assert governor.choose(2, 2) == 2


def test_slow_steps_in_a_row_are_followed_by_one_thread_for_a_while():
    governor = Governor()
    for _ in range(2):
        governor.observe(2, took_ms=900, alone_ms=10, now=5.0)
    assert governor.choose(2, 5.0) == 1
    assert governor.choose(2, 5.0 + FIRST_S) == 2


def test_each_try_in_vain_makes_the_next_while_longer_up_to_a_bound():
    governor, now, waits = Governor(), 0.0, []
    for _ in range(12):
        while governor.choose(2, now) == 2:
            governor.observe(2, took_ms=900, alone_ms=10, now=now)
        began = now
        while governor.choose(2, now) == 1:
            now += 0.25
        waits.append(now - began)
    assert waits == sorted(waits)
    assert waits[-1] == MAX_S
    governor.observe(2, took_ms=9, alone_ms=10, now=now)
    for _ in range(2):
        governor.observe(2, took_ms=900, alone_ms=10, now=now)
    assert governor.choose(2, now + FIRST_S) == 2


def test_a_single_thread_is_never_held_against_itself():
    governor = Governor()
    for _ in range(5):
        governor.observe(1, took_ms=900, alone_ms=10, now=0)
    assert governor.choose(1, 0) == 1
    assert governor.choose(2, 0) == 2
