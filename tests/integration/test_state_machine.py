"""A request's life against the real server: in any order of events it has one end and no gap.

The model is small: which states may follow, which attempt may write, and where the message is.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import State
from tasks.queue.errors import QueueFull
from tasks.queue.leases import DEATH
from tasks.worker.attempt import Attempt
from tests.integration.life import SUCCEEDED, Life, Taken

pytestmark = pytest.mark.integration

IDS = ("a", "b", "c", "d", "e")
FINAL = {state for state in State if state.is_final}


class RequestLife(RuleBasedStateMachine):
    """Some requests, any number of workers, and a janitor."""

    redis: Redis

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.life = Life(self.redis)
        self.ends: dict[str, State] = {}
        self.pushed: set[str] = set()
        #: What workers believe they hold, rightly or not: messages; attempts with the last event's number.
        self.taken: list[Taken] = []
        self.runs: list[tuple[Attempt, int]] = []
        #: Number of the latest attempt, and its claim, by request.
        self.seen = dict.fromkeys(IDS, 0)
        self.latest: dict[str, Attempt] = {}

    # ---- what may happen ------------------------------------------------------------------------

    @initialize(request_ids=st.sets(st.sampled_from(IDS), min_size=2))
    def accept(self, request_ids: set[str]) -> None:
        for request_id in sorted(request_ids):
            self.submit(request_id, is_full=False)

    @rule(request_id=st.sampled_from(IDS), is_full=st.booleans())
    def submit(self, request_id: str, is_full: bool) -> None:
        was = self.state(request_id)
        cap = len(self.life.waiting()) if is_full else 0
        if was is None and cap:
            with pytest.raises(QueueFull) as full:
                self.life.submit(request_id, cap=cap)
            assert full.value.waiting == cap
            assert self.state(request_id) is None
            return
        assert self.life.submit(request_id, cap=cap).is_new == (was is None)
        assert self.state(request_id) is (was or State.QUEUED)
        self.pushed.add(request_id)

    @precondition(lambda self: self.life.waiting())
    @rule(is_claimed=st.booleans())
    def take(self, is_claimed: bool) -> None:
        first = self.life.waiting()[0]
        taken = self.life.take()
        assert taken is not None
        assert taken.id == first
        self.taken.append(taken)
        if is_claimed:
            self.claimed(taken.id)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        """Claim, also by a worker that lost the lease after it took the message."""
        self.claimed(data.draw(st.sampled_from(self.taken)).id)

    def claimed(self, request_id: str) -> None:
        was, claim = self.state(request_id), self.life.claim(request_id)
        if claim is None:
            assert was in FINAL or self.state(request_id) is State.FAILED
            return
        assert claim.number > self.seen[request_id]
        self.seen[request_id], self.latest[request_id] = claim.number, claim
        self.runs.append((claim, claim.first_seq))

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), is_last=st.sampled_from([False, False, False, True]), is_repeated=st.booleans())
    def append(self, data: st.DataObject, is_last: bool, is_repeated: bool) -> None:
        """Append, also by attempts that are long stale."""
        index = data.draw(st.integers(0, len(self.runs) - 1))
        claim, seq = self.runs[index]
        before, may_write = self.log(claim.request.id), self.may_write(claim)
        for _ in range(1 + is_repeated):
            goes_on = self.life.append(claim, seq + 1, SUCCEEDED if is_last else None)
        # Once a request is over, an attempt's end counts as written.
        assert goes_on == may_write or is_last
        assert len(self.log(claim.request.id)) == len(before) + may_write
        self.runs[index] = claim, seq + may_write

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), charge=st.sampled_from([0.0, DEATH]))
    def put_back(self, data: st.DataObject, charge: float) -> None:
        taken = self.give_up(data)
        self.moved(taken, self.life.put_back(taken, charge))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def lose_lease(self, data: st.DataObject) -> None:
        """The worker that lost the lease goes on as if nothing had happened."""
        taken = data.draw(st.sampled_from(self.taken))
        self.moved(taken, self.life.lose_lease(taken))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        """Another worker takes over a request whose lease was lost, and both workers write in turns."""
        self.lose_lease(data)
        if self.life.waiting():
            self.take(is_claimed=True)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """Acknowledge; if the request isn't over, its message is lost."""
        self.life.acknowledge(self.give_up(data))

    @rule(request_id=st.sampled_from(IDS))
    def cancel(self, request_id: str) -> None:
        was = self.state(request_id)
        assert self.life.store.cancel(request_id) is was
        if was is not None and not was.is_final:
            assert self.state(request_id) is State.CANCELLED

    @rule(request_id=st.sampled_from(IDS))
    def expire(self, request_id: str) -> None:
        if self.redis.zscore(redis_names.DEADLINES, request_id) is not None:
            self.redis.zadd(redis_names.DEADLINES, {request_id: 1})
        was = self.state(request_id)
        has_run = self.seen[request_id] > 0
        self.life.store.expire_due()
        if was is State.QUEUED and not has_run:
            assert self.state(request_id) is State.EXPIRED
        else:
            assert self.state(request_id) is was

    @rule()
    def tidy(self) -> None:
        lost = [i for i in IDS if self.is_open(i) and self.places(i) == 0]
        assert sorted(self.life.janitor.tidy()) == lost
        assert all(self.places(i) == 1 for i in IDS if self.is_open(i))

    # ---- what always holds ----------------------------------------------------------------------

    @invariant()
    def one_end_that_stays(self) -> None:
        for request_id in IDS:
            state = self.state(request_id)
            ends = [event.end for event in self.life.store.read_log(request_id) if event.end]
            assert len(ends) == (state in FINAL)
            if state in FINAL:
                assert state is self.ends.setdefault(request_id, ends[0].state)
            else:
                assert request_id not in self.ends

    @invariant()
    def events_without_a_gap(self) -> None:
        for request_id in IDS:
            log = self.log(request_id)
            assert log == list(range(1, len(log) + 1))

    @invariant()
    def one_message_at_most(self) -> None:
        for request_id in IDS:
            assert self.places(request_id) <= 1

    @invariant()
    def accepted_is_known(self) -> None:
        for request_id in self.pushed:
            assert self.state(request_id) is not None

    @invariant()
    def indexes_tell_the_truth(self) -> None:
        active = {i.decode() for i in self.redis.zrange(redis_names.ACTIVE, 0, -1) if isinstance(i, bytes)}
        running = {i.decode() for i in self.redis.zrange(redis_names.RUNNING, 0, -1) if isinstance(i, bytes)}
        assert active == {i for i in IDS if self.is_open(i)}
        assert running == {i for i in IDS if self.state(i) is State.RUNNING}

    def teardown(self) -> None:
        """Every accepted request can be brought to its end, and nothing is left behind."""
        for _ in range(len(IDS) * 2):
            for entry in self.redis.zrange(redis_names.LEASES, 0, -1):
                assert isinstance(entry, bytes)
                self.life.lose_lease(self.holder(entry.decode()))
            self.life.janitor.tidy()
            self.finish_all()
        assert not any(self.is_open(i) for i in self.pushed)
        assert not self.redis.exists(
            redis_names.ACTIVE,
            redis_names.RUNNING,
            redis_names.DEADLINES,
            redis_names.LEASES,
            redis_names.UNACKED,
        )

    # ---- helpers --------------------------------------------------------------------------------

    def give_up(self, data: st.DataObject) -> Taken:
        return self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))

    def finish_all(self) -> None:
        while (taken := self.life.take()) is not None:
            claim = self.life.claim(taken.id)
            if claim is not None:
                assert self.life.append(claim, claim.first_seq + 1, SUCCEEDED)
            self.life.acknowledge(taken)

    def holder(self, tag: str) -> Taken:
        entry = self.redis.hget(redis_names.UNACKED, tag)
        assert isinstance(entry, bytes)
        message = json.loads(entry)[0]
        return Taken(message["headers"]["id"], tag, message)

    def moved(self, taken: Taken, answer: int) -> None:
        if answer == 1:
            assert self.life.waiting()[0] == taken.id
            assert self.state(taken.id) is State.QUEUED
        elif answer == 0:
            assert self.state(taken.id) in FINAL

    def may_write(self, claim: Attempt) -> bool:
        request_id = claim.request.id
        is_latest = self.latest[request_id] is claim
        return is_latest and self.state(request_id) is State.RUNNING

    def state(self, request_id: str) -> State | None:
        record = self.life.store.fetch(request_id)
        return None if record is None else record.state

    def is_open(self, request_id: str) -> bool:
        return self.state(request_id) in (State.QUEUED, State.RUNNING)

    def places(self, request_id: str) -> int:
        return (self.life.waiting() + self.life.reserved()).count(request_id)

    def log(self, request_id: str) -> list[int]:
        return [event.seq for event in self.life.store.read_log(request_id)]


def test_a_requests_life(redis: Redis) -> None:
    class Machine(RequestLife):
        pass

    Machine.redis = redis
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=15, stateful_step_count=40, deadline=None)
    )
