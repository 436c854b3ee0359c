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

    def append(self, items: Sequence[Append]) -> list[bool]:
        for item in items:
            if not item.is_silent:
                self.written.put(item)
        return [True] * len(items)

    def next(self) -> Append:
        return self.written.get(timeout=PATIENCE_S)


@contextmanager
def delivering(
    store: FakeStore, interval_s: float, *, stream: bool = True
) -> Iterator[tuple[Deliverer, Attempt]]:
    deliverer = Deliverer(store, interval_s)
    run = Attempt(
        request=GenerateRequest("r", "m", prompt="Hi", stream=stream),
        number=1,
        fence="f",
        queue_ms=0.0,
        age_ms=0.0,
        first_ms=None,
        first_seq=0,
    )
    deliverer.add(run)
    deliverer.start(lambda _key: None)
    yield deliverer, run
    deliverer.close()


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
