"""When tokens are written: first tokens and ends at once, the others together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from tasks.contract.messages import FinishReason, GenerateRequest
from tasks.engine.sequence import Delta, Ending
from tasks.worker.attempt import Attempt
from tasks.worker.attempt_store import Append, AttemptStore
from tasks.worker.deliver import Deliverer

pytestmark = pytest.mark.unit

#: Seconds: longer than any test; and the time within which due tokens must be written.
NEVER_S, PATIENCE_S = 3600.0, 10.0
END = Ending(FinishReason.LENGTH, prompt_n=3, predicted_n=4, first_ms=1.0, gaps_ms=(1.0, 1.0, 1.0))


class FakeStore(AttemptStore):
    """Keeps what is appended."""

    def __init__(self) -> None:
        self.written: SimpleQueue[Append] = SimpleQueue()
        self.asked: SimpleQueue[list[str]] = SimpleQueue()
        self.unwanted: set[str] = set()

    def append(self, items: Sequence[Append]) -> list[bool]:
        for item in items:
            if not item.is_silent:
                self.written.put(item)
        if silent := [item.id for item in items if item.is_silent]:
            self.asked.put(silent)
        return [item.id not in self.unwanted for item in items]

    def next(self) -> Append:
        return self.written.get(timeout=PATIENCE_S)


@contextmanager
def delivering(
    store: FakeStore, interval_s: float, *, stream: bool = True
) -> Iterator[tuple[Deliverer, Attempt]]:
    deliverer, run = Deliverer(store, interval_s), attempt("r", stream=stream)
    deliverer.add(run)
    deliverer.start(lambda _key: None)
    yield deliverer, run
    deliverer.close()


def attempt(request_id: str, *, stream: bool = True) -> Attempt:
    return Attempt(
        request=GenerateRequest(request_id, "m", prompt="Hi", stream=stream),
        number=1,
        fence="f",
        queue_ms=0.0,
        age_ms=0.0,
        first_ms=None,
        first_seq=0,
    )


def token(run: Attempt, number: int, ending: Ending | None = None) -> list[Delta]:
    return [Delta(run.key, f" {number}", (number,), ending)]


def test_the_first_token_and_the_end_are_written_at_once_and_the_others_together():
    store = FakeStore()
    with delivering(store, NEVER_S) as (deliverer, run):
        deliverer.put(token(run, 1))
        assert store.next().tokens == (1,)
        for number in (2, 3):
            deliverer.put(token(run, number))
        deliverer.put(token(run, 4, END))
        last = store.next()
    assert (last.tokens, last.text, last.seq) == ((2, 3, 4), " 2 3 4", 2)
    assert last.end is not None
    assert run.over.is_set()


def test_a_token_that_is_held_back_is_written_even_if_no_step_follows():
    store = FakeStore()
    with delivering(store, 0.01) as (deliverer, run):
        deliverer.put(token(run, 1))
        assert store.next().tokens == (1,)
        deliverer.put(token(run, 2))
        assert store.next().tokens == (2,)


def test_without_an_interval_each_step_is_written():
    store = FakeStore()
    with delivering(store, 0.0) as (deliverer, run):
        for number in (1, 2, 3):
            deliverer.put(token(run, number))
            assert store.next().tokens == (number,)


def test_what_nobody_streams_is_written_at_the_end():
    store = FakeStore()
    with delivering(store, 0.0, stream=False) as (deliverer, run):
        deliverer.put([*token(run, 1), *token(run, 2, END)])
        assert store.next().tokens == (1, 2)


def test_at_the_end_what_is_held_back_is_written_and_its_run_handed_back():
    store = FakeStore()
    with delivering(store, NEVER_S) as (deliverer, run):
        deliverer.put(token(run, 1))
        assert store.next().tokens == (1,)
        deliverer.put(token(run, 2))
    assert store.next().tokens == (2,)
    assert run.is_handed_back


@pytest.mark.parametrize("interval_s", [0.0, NEVER_S])
def test_attempts_that_give_nothing_are_asked_for_and_leave_when_they_are_over(interval_s):
    """They wait for a slot, for another's prefix, for their turn in prefill, or for their tokens."""
    store, stopped = FakeStore(), SimpleQueue[str]()
    deliverer, silent = Deliverer(store, interval_s), [attempt(name) for name in ("a", "b", "c")]
    deliverer.start(stopped.put)
    for each in silent:
        deliverer.add(each)
    while sorted(store.asked.get(timeout=PATIENCE_S)) != ["a", "b", "c"]:
        pass  # the first questions may come before all were added
    store.unwanted.add("b")
    assert silent[1].over.wait(PATIENCE_S)
    assert stopped.get(timeout=PATIENCE_S) == silent[1].key
    while store.asked.get(timeout=PATIENCE_S) != ["a", "c"]:
        pass
    deliverer.remove(silent[2])
    while store.asked.get(timeout=PATIENCE_S) != ["a"]:
        pass
    deliverer.close()
    assert (silent[0].is_handed_back, silent[1].is_handed_back, silent[2].over.is_set()) == (
        True,
        False,
        False,
    )


def test_an_attempt_whose_tokens_are_held_back_is_asked_for_too():
    store = FakeStore()
    with delivering(store, NEVER_S) as (deliverer, run):
        deliverer.put(token(run, 1))
        assert store.next().tokens == (1,)
        deliverer.put(token(run, 2))
        store.unwanted.add("r")
        assert run.over.wait(PATIENCE_S)
    assert store.written.empty()


def test_only_those_that_were_silent_for_long_are_asked_for():
    store = FakeStore()
    with delivering(store, NEVER_S) as (deliverer, run):
        deliverer.put(token(run, 1))
        assert store.next().tokens == (1,)
        run.told_at += NEVER_S  # Redis has just said that it goes on
        deliverer.add(attempt("silent"))
        while store.asked.get(timeout=PATIENCE_S) != ["silent"]:
            pass  # the first question may have come before
        assert [store.asked.get(timeout=PATIENCE_S) for _ in range(3)] == [["silent"]] * 3


def test_a_write_counts_as_a_question():
    store = FakeStore()
    with delivering(store, 0.0) as (deliverer, run):
        run.told_at = claimed = run.told_at + NEVER_S
        deliverer.put(token(run, 1))
        assert store.next().tokens == (1,)
        assert store.asked.get(timeout=PATIENCE_S) == ["r"]  # it was told now, which is earlier
        assert run.told_at < claimed


def test_nobody_is_asked_while_there_is_no_attempt():
    store = FakeStore()
    with delivering(store, 0.0) as (deliverer, run):
        deliverer.put(token(run, 1, END))
        assert store.next().end is not None
        assert run.over.wait(PATIENCE_S)
        assert deliverer._patience_s() is None
