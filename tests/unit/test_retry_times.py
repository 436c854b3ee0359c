"""When refused clients are told to come back, and the turns of those that ask."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError

from service.admission.gate import BusyError, Gate
from service.admission.retry_times import MAX_S, MEASURED_S, UNKNOWN_S, RetryTimes

pytestmark = pytest.mark.unit

#: How often OpenAI's clients try again.
MAX_RETRIES = 2


def at(now: list[float], interval_s: float | None, **options: int) -> RetryTimes:
    """Retry times on a clock that the test sets, with fixed random numbers."""
    return RetryTimes(lambda _: interval_s, clock=lambda: now[0], draw=random.Random(1).random, **options)


def test_each_client_is_told_a_later_time_at_the_rate_of_free_places() -> None:
    times = at([0.0], 0.5)
    told = [times.next_s("m") for _ in range(100)]
    for place, seconds in enumerate(told, 1):
        assert 0.75 * 0.5 * place <= seconds <= 1.25 * 0.5 * place + 1


@given(st.floats(0.0, 1e4), st.integers(1, 500), st.integers(0, 50), st.integers(1, 8))
def test_every_time_is_bounded(interval_s: float, num: int, ahead: int, share: int) -> None:
    times = at([0.0], interval_s, share=share)
    told = [times.next_s("m", ahead) for _ in range(num)]
    assert all(isinstance(seconds, int) and 1 <= seconds <= MAX_S for seconds in told)


def test_a_crowd_is_spread_however_long_its_line_is() -> None:
    times = at([0.0], 100.0)
    told = Counter(times.next_s("m") for _ in range(600))
    assert max(told.values()) < 60
    assert min(told) >= MAX_S // 2


def test_the_line_gets_shorter_as_time_passes() -> None:
    now = [0.0]
    times = at(now, 1.0)
    for _ in range(30):
        times.next_s("m")
    now[0] = 29.0
    assert times.next_s("m") <= 3
    assert times.next_s("other") <= 2


def test_the_rate_is_measured_once_a_second_and_kept_while_redis_is_away() -> None:
    now, asked = [0.0], list[str]()

    def measure(model: str) -> float:
        asked.append(model)
        if len(asked) > 1:
            raise RedisConnectionError("away")
        return 20.0

    times = RetryTimes(measure, clock=lambda: now[0], draw=lambda: 0.5)
    assert [times.next_s("m") for _ in range(2)] == [20, 40]
    now[0] = MEASURED_S
    assert times.next_s("m") == 59
    assert asked == ["m", "m"]


def num_that_give_up(num: int, cap: int, interval_s: float, told: Callable[[float], int]) -> int:
    """Of ``num`` clients that come at once; a place of ``cap`` becomes free every ``interval_s`` seconds."""
    events, numbers = [(0.0, number, MAX_RETRIES) for number in range(num)], itertools.count(num)
    free_again, lost = list[float](), 0
    while events:
        now, _, left = heapq.heappop(events)
        free_again = [moment for moment in free_again if moment > now]
        if len(free_again) < cap:
            free_again.append(max([now, *free_again]) + interval_s)
        elif left:
            heapq.heappush(events, (now + told(now), next(numbers), left - 1))
        else:
            lost += 1
    return lost


def test_clients_that_try_twice_again_get_through() -> None:
    now = [0.0]
    times = at(now, 0.5)

    def told(moment: float) -> int:
        now[0] = moment
        return times.next_s("m")

    assert num_that_give_up(100, 8, 0.5, lambda _: 1) > 50
    assert num_that_give_up(100, 8, 0.5, told) == 0


def test_without_a_known_rate_they_are_spread_too() -> None:
    times = at([0.0], None)
    assert len({times.next_s("m") for _ in range(20)}) > 10
    assert UNKNOWN_S > 0


def test_few_ask_at_a_time_and_the_others_wait_for_their_turn() -> None:
    gate, inside, most = Gate(width=3), 0, 0
    lock, let_go = threading.Lock(), threading.Event()

    def ask() -> None:
        nonlocal inside, most
        with gate.passed():
            with lock:
                inside += 1
                most = max(most, inside)
            let_go.wait(10)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    let_go.set()
    for thread in threads:
        thread.join(10)
    assert (most <= 3, inside) == (True, 0)


def test_a_turn_that_does_not_come_is_an_error() -> None:
    gate = Gate(width=1, patience_s=0.01)
    with gate.passed(), pytest.raises(BusyError), gate.passed():
        pass
    with gate.passed():
        pass
