"""Listening: events come in order, without gap or repeat, whatever pub/sub loses. The log is a fake."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError

from service.admission.full_queues import FULL_S, FullQueues
from service.admission.waiting_room import TooManyWaitingError, WaitingRoom
from service.errors import ApiError
from service.streaming.client_gone import ClientGoneError
from service.streaming.listener import PATIENCE_S, Listener, Mailbox, Source
from tasks.contract.messages import End, ErrorCode, Event, FinishReason, State
from tasks.queue.errors import QueueFull
from tests.waiting import wait_until

pytestmark = pytest.mark.unit


@dataclass
class FakeLog:
    """A log and a clock; ``is_away`` makes every call fail as redis-py does."""

    events: list[Event] = field(default_factory=list)
    state: State | None = State.RUNNING
    is_away: bool = False
    num_reads: int = 0
    now: float = 0.0

    def read_log(self, request_id: str, after: int = 0) -> list[Event]:
        self.num_reads += 1
        return [event for event in self.events if event.seq > after]

    def watch(self, request_id: str, channel: str) -> State | None:
        if self.is_away:
            raise RedisConnectionError("away")
        return self.state


def event(seq: int, *, is_last: bool = False) -> Event:
    end = End(State.SUCCEEDED, FinishReason.STOP) if is_last else None
    return Event(seq, f"t{seq}", (seq,), end)


def raw(item: Event) -> dict[str, Any]:
    found: dict[str, Any] = {"s": item.seq, "t": item.text, "k": list(item.tokens)}
    return found if item.end is None else {**found, "end": {"state": "succeeded", "finish_reason": "stop"}}


def listening(log: FakeLog, limit: int = 512, **options: Any) -> tuple[Mailbox, Listener]:
    box = Mailbox(limit)
    return box, Listener(Source(box, log, "channel", lambda: log.now), "id", **options)


def seqs(events: list[Event]) -> list[int]:
    return [item.seq for item in events]


def test_events_come_in_order_without_reading_the_log() -> None:
    log = FakeLog()
    box, listener = listening(log)
    for seq in (1, 2, 3):
        box.put(raw(event(seq)))
    assert listener.take() == [event(1), event(2), event(3)]
    assert log.num_reads == 0


def test_what_can_not_be_read_is_looked_up_in_the_log() -> None:
    log = FakeLog([event(1), event(2)])
    box, listener = listening(log)
    for item in (raw(event(1)), "no event", raw(event(2))):
        box.put(cast("dict[str, Any]", item))
    assert listener.take() == [event(1), event(2)]
    assert log.num_reads == 1


def test_an_event_of_a_newer_format_is_an_error_that_names_it() -> None:
    box, listener = listening(FakeLog())
    box.put({"v": 99, "number": 1})
    with pytest.raises(ApiError, match="format version 99") as failed:
        listener.take()
    assert (failed.value.status, failed.value.code) == (503, "unsupported_version")


def test_repeats_are_dropped() -> None:
    box, listener = listening(FakeLog())
    for seq in (1, 1, 2, 1, 2, 3):
        box.put(raw(event(seq)))
    assert seqs(listener.take()) == [1, 2, 3]


def test_a_gap_is_filled_from_the_log() -> None:
    log = FakeLog([event(seq) for seq in range(1, 6)])
    box, listener = listening(log)
    for seq in (1, 4, 5):
        box.put(raw(event(seq)))
    assert seqs(listener.take()) == [1, 2, 3, 4, 5]
    assert log.num_reads == 1


def test_a_reader_that_is_behind_finds_the_rest_in_the_log() -> None:
    log = FakeLog([event(seq) for seq in range(1, 21)])
    box, listener = listening(log, limit=4)
    for seq in range(1, 21):
        box.put(raw(event(seq)))
    assert seqs(listener.take()) == list(range(1, 21))


def test_a_reconnection_has_the_log_read() -> None:
    log = FakeLog([event(1), event(2, is_last=True)])
    box, listener = listening(log)
    box.mark_stale()
    assert seqs(listener.take()) == [1, 2]
    assert listener.is_over
    assert listener.take() == []


def test_silence_has_the_log_read_ever_more_seldom() -> None:
    log = FakeLog()
    box, listener = listening(log)
    reads = []
    for second in range(31):
        log.now = second
        box.tick()
        before = log.num_reads
        listener.take()
        if log.num_reads > before:
            reads.append(second)
    assert reads == [2, 6, 14, 22, 30]


def test_a_follower_begins_with_the_log() -> None:
    log = FakeLog([event(1), event(2), event(3, is_last=True)])
    _, listener = listening(log, after=1, is_behind=True)
    assert seqs(listener.take()) == [2, 3]
    assert listener.is_over


def test_it_waits_while_redis_is_away_and_goes_on_after() -> None:
    log = FakeLog([event(1), event(2)], is_away=True)
    box, listener = listening(log)
    box.mark_stale()
    assert listener.take() == []
    box.tick()
    assert listener.take() == []
    log.is_away = False
    box.tick()
    assert seqs(listener.take()) == [1, 2]


def test_it_gives_up_when_redis_stays_away() -> None:
    log = FakeLog(is_away=True)
    box, listener = listening(log, is_behind=True)
    assert listener.take() == []
    log.now = PATIENCE_S + 1
    box.tick()
    with pytest.raises(ApiError) as caught:
        listener.take()
    assert caught.value.status == 503


def test_a_record_that_is_gone_ends_the_stream_with_an_error() -> None:
    _, listener = listening(FakeLog(state=None), is_behind=True)
    [last] = listener.take()
    assert last.end is not None
    assert last.end.error is not None
    assert last.end.error.code is ErrorCode.INTERNAL
    assert listener.is_over


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 8))
def test_any_loss_repeat_and_order_gives_each_event_once(seed: int, num: int, limit: int) -> None:
    rng = random.Random(seed)
    events = [event(seq, is_last=seq == num) for seq in range(1, num + 1)]
    log = FakeLog()
    box, listener = listening(log, limit=limit)
    got: list[Event] = []
    for item in events:
        log.events.append(item)
        for old in [item, *rng.sample(log.events, rng.randint(0, min(2, item.seq)))]:
            if rng.random() < 0.6:
                box.put(raw(old))
        if rng.random() < 0.3:
            box.tick()
            got += listener.take()
    while not listener.is_over:
        log.now += 10
        box.tick()
        got += listener.take()
    assert got == events


# ---- waiting for a place ------------------------------------------------------------------------


class FakeQueue:
    """Has ``free`` room; ``entered`` lists the requests that got one."""

    def __init__(self, free: int = 0) -> None:
        self.free, self.entered = free, list[str]()
        self._lock = threading.Lock()

    def attempt(self, name: str) -> None:
        with self._lock:
            if not self.free:
                raise QueueFull(1, 1)
            self.free -= 1
            self.entered.append(name)


def test_without_waiting_a_full_queue_refuses_at_once() -> None:
    queue, room = FakeQueue(), WaitingRoom(4)
    with pytest.raises(QueueFull):
        room.enter("m", lambda: queue.attempt("a"), 0, lambda: None)
    assert room.num_waiting == 0


def test_a_queue_found_full_is_asked_again_when_a_place_may_be_free() -> None:
    queue, now = FakeQueue(), 0.0
    room = WaitingRoom(4, FullQueues(lambda: now))

    def is_asked(**options: Any) -> bool:
        queue.free, queue.entered = 1, []
        with suppress(QueueFull):
            room.enter("m", lambda: queue.attempt("a"), 0, lambda: None, **options)
        found, queue.free = bool(queue.entered), 0
        return found

    def find_full() -> None:
        with pytest.raises(QueueFull):
            room.enter("m", lambda: queue.attempt("a"), 0, lambda: None, may_exist=True)

    find_full()
    assert not is_asked()
    assert is_asked(may_exist=True)
    find_full()
    room.wake("other")
    assert not is_asked()
    room.wake("m")
    assert is_asked()
    find_full()
    room.look_again()
    assert is_asked()
    find_full()
    now = FULL_S
    assert is_asked()
    find_full()
    now += FULL_S
    with pytest.raises(QueueFull):  # while one request asks, the others are refused
        room.enter("m", lambda: None if is_asked() else queue.attempt("a"), 0, lambda: None)


def test_waiters_enter_in_the_order_they_came() -> None:
    queue, room, threads = FakeQueue(), WaitingRoom(4), []
    for name in "abc":
        run = threading.Thread(
            target=room.enter, args=("m", lambda name=name: queue.attempt(name), 30, lambda: None)
        )
        run.start()
        threads.append(run)
        wait_until(lambda: room.num_waiting == len(threads))
    queue.free = 3
    room.wake("m")
    for run in threads:
        run.join(10)
    assert queue.entered == ["a", "b", "c"]
    assert room.num_waiting == 0


def test_who_does_not_wait_cannot_pass_those_who_do() -> None:
    queue, room, stop = FakeQueue(), WaitingRoom(4), threading.Event()

    def check() -> None:
        if stop.is_set():
            raise ClientGoneError

    def waiter() -> None:
        with pytest.raises(ClientGoneError):
            room.enter("m", lambda: queue.attempt("a") if stop.is_set() else full(), 30, check)

    def full() -> None:
        raise QueueFull(1, 1)

    run = threading.Thread(target=waiter)
    run.start()
    wait_until(lambda: room.num_waiting == 1)
    with pytest.raises(QueueFull):
        room.enter("m", full, 0, lambda: None)
    room.enter("other", lambda: None, 0, lambda: None)
    stop.set()
    run.join(10)
    assert room.num_waiting == 0


def test_waiters_are_bounded() -> None:
    queue, room = FakeQueue(), WaitingRoom(0)
    with pytest.raises(TooManyWaitingError):
        room.enter("m", lambda: queue.attempt("a"), 10, lambda: None)


def test_the_wait_ends() -> None:
    queue, room = FakeQueue(), WaitingRoom(1)
    with pytest.raises(QueueFull):
        room.enter("m", lambda: queue.attempt("a"), 0.05, lambda: None)
