"""The engine's loop on a fake context that checks every cell: batching, reuse, preemption, faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Semaphore
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contract.messages import ErrorCode, FinishReason, Sampling
from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.engine.costs.threads import CorePool, Threads
from tasks.engine.llama.context import CacheFullError, DecodeError, Row
from tasks.engine.loop import Engine, EngineOptions
from tasks.engine.sequence import Delta, Job
from tasks.telemetry.work_counter import WorkCounter

pytestmark = pytest.mark.unit

GREEDY = Sampling(temperature=0)
EOG = 999
Follower = Callable[[list[int]], int]


def follower(tokens: list[int]) -> int:
    """The fake model's next token: depends on every token before it."""
    return (sum((i + 1) * token for i, token in enumerate(tokens)) * 31 + 7) % 900


class FakeModel:
    """A vocabulary in which token 7 is the piece "7 "."""

    def __init__(self, *, rewinds: bool = True) -> None:
        self.rewinds = rewinds

    def is_eog(self, token: int) -> bool:
        return token == EOG

    def piece(self, token: int) -> bytes:
        return f"{token} ".encode()


class FakeContext:
    """Keeps the tokens of every cell, and refuses rows that don't continue their sequence.

    Without ``can_trim`` it has only all of a sequence's cells or none, which its model says or, if it
    ``rewinds``, does not.
    """

    def __init__(
        self,
        slots: int = 4,
        n_ctx: int = 64,
        n_batch: int = 32,
        capacity: int | None = None,
        can_trim: bool = True,
        rewinds: bool | None = None,
        follows: Follower = follower,
    ) -> None:
        self.follows = follows
        self.model = FakeModel(rewinds=can_trim if rewinds is None else rewinds)
        self.slots, self.n_ctx, self.n_batch = slots, n_ctx, n_batch
        self.cells: list[list[int]] = [[] for _ in range(slots)]
        self.capacity, self.can_trim = capacity, can_trim
        self.failures, self.is_broken, self.threads = 0, False, 1
        self._outputs: list[int] = []
        self.computed: list[int] = []

    def decode(self, rows: Sequence[Row]) -> None:
        assert [row.seq for row in rows] == sorted(row.seq for row in rows)
        assert len(rows) <= max(self.n_batch, self.slots)
        if self.failures:
            self.failures -= 1
            raise DecodeError("broken")
        if self.capacity and len(rows) + sum(map(len, self.cells)) > self.capacity:
            raise CacheFullError
        self._outputs = []
        for row in rows:
            assert row.pos == len(self.cells[row.seq]), "a row that does not continue its sequence"
            self.cells[row.seq].append(row.token)
            if row.is_output:
                self._outputs.append(self.follows(self.cells[row.seq]))
        self.computed.append(len(rows))

    def greedy(self, num_outputs: int, endless: Sequence[int] = ()) -> list[int]:
        assert all(row < num_outputs for row in endless)
        return [] if self.is_broken else self._outputs[:num_outputs]

    def trim(self, seq: int, start: int) -> bool:
        if not self.can_trim and 0 < start < len(self.cells[seq]):
            return False
        del self.cells[seq][start:]
        return True

    def copy(self, source: int, target: int, size: int) -> bool:
        if not self.can_trim and size != len(self.cells[source]):
            return False
        self.cells[target] = list(self.cells[source])
        return self.trim(target, size)

    def use_threads(self, threads: int) -> None:
        self.threads = threads

    def close(self) -> None:
        pass


class SteppedContext(FakeContext):
    """Computes a batch only when a test lets it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.steps = Semaphore(2)  # the engine's first batch and one more

    def decode(self, rows: Sequence[Row]) -> None:
        assert self.steps.acquire(timeout=20)
        super().decode(rows)


class Run:
    """An engine on a fake context, driven to the end of its jobs."""

    def __init__(self, context: Any, threads: Threads | None = None, **options: Any) -> None:
        self.tokens: dict[str, tuple[int, ...]] = defaultdict(tuple)
        self.endings: dict[str, Any] = {}
        self.work = WorkCounter()
        self._ended: SimpleQueue[str] = SimpleQueue()
        self.crashed: SimpleQueue[bool] = SimpleQueue()
        options.setdefault("on_crash", lambda: self.crashed.put(True))
        self.engine = Engine(
            lambda: context,
            self._sink,
            threads or CorePool(1, 1).member(0),
            self.work,
            EngineOptions(**options),
        )
        self.engine.start()
        context.computed.clear()  # forget the first batch

    def _sink(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.tokens[delta.key] += delta.tokens
            if delta.ending is not None:
                self.endings[delta.key] = delta.ending
                self._ended.put(delta.key)

    def next_ended(self) -> str:
        return self._ended.get(timeout=20)

    def finish(self, jobs: Sequence[Job]) -> Run:
        for job in jobs:
            self.engine.submit(job)
        for _ in jobs:
            self._ended.get(timeout=10)
        self.engine.close()
        return self


def expected(job: Job, follows: Follower = follower) -> tuple[int, ...]:
    tokens = [*job.prompt, *job.delivered]
    answer: list[int] = []
    while len(answer) + len(job.delivered) < job.max_tokens:
        answer.append(follows(tokens))
        tokens.append(answer[-1])
    return tuple(answer)


def known(costs: StepCosts) -> Callable[[Any], CostTable]:
    """The same step costs for any number of threads."""
    return lambda _: CostTable(((1, costs),))


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(tuple)
jobs = st.lists(st.tuples(prompts, st.integers(1, 20)), min_size=1, max_size=10).map(
    lambda entries: [
        Job(str(i), prompt, count, GREEDY, ignore_eos=True) for i, (prompt, count) in enumerate(entries)
    ]
)
#: All cells; a window that may have left some behind; one state.
memories = st.sampled_from([{}, {"can_trim": False, "rewinds": True}, {"can_trim": False, "rewinds": False}])
#: Two and three rows cost more than four.
ODD = StepCosts(((1, 1), (2, 7), (3, 9), (4, 6), (8, 7)), 0.5)


@settings(deadline=None, max_examples=60)
@given(jobs, st.booleans(), memories, st.booleans())
def test_every_job_gets_its_own_tokens_whatever_shares_its_batch(work, reuses, memory, is_shaped):
    run = Run(
        FakeContext(**memory),
        reuses_prefixes=reuses,
        measure=known(ODD) if is_shaped else None,
    ).finish(work)
    assert {job.key: run.tokens[job.key] for job in work} == {job.key: expected(job) for job in work}
    assert all(ending.reason is FinishReason.LENGTH for ending in run.endings.values())


@settings(deadline=None, max_examples=40)
@given(jobs)
def test_a_full_cache_puts_the_youngest_back_and_loses_nothing(work):
    run = Run(FakeContext(capacity=70)).finish(work)
    assert {job.key: run.tokens[job.key] for job in work} == {job.key: expected(job) for job in work}


def test_preemption_happens_and_is_counted():
    work = [Job(str(i), tuple(range(i, i + 30)), 10, GREEDY, ignore_eos=True) for i in range(2)]
    run = Run(FakeContext(capacity=64)).finish(work)
    assert run.work.counts["preemptions"] >= 1
    assert {job.key: run.tokens[job.key] for job in work} == {job.key: expected(job) for job in work}


def test_a_cache_too_small_for_one_ends_it_with_an_error():
    run = Run(FakeContext(capacity=20)).finish([Job("a", tuple(range(30)), 5, GREEDY)])
    assert run.endings["a"].error.code is ErrorCode.INTERNAL


def test_a_shared_prefix_is_computed_once_however_many_arrive_together():
    shared = tuple(range(50))
    context = FakeContext(slots=4, n_ctx=128, n_batch=64)
    work = [Job(str(i), (*shared, 100 + i), 2, GREEDY, ignore_eos=True) for i in range(4)]
    run = Run(context).finish(work)
    assert sum(run.endings[job.key].cache_n for job in work) == 3 * len(shared)
    assert run.work.counts["prefilled"] == len(shared) + 4
    assert {job.key: run.tokens[job.key] for job in work} == {job.key: expected(job) for job in work}


def test_a_failed_batch_is_computed_again():
    run = Run(context := FakeContext())
    context.failures = 2
    job = Job("a", (1, 2, 3), 5, GREEDY, ignore_eos=True)
    assert run.finish([job]).tokens["a"] == expected(job)


def test_an_engine_computes_before_it_is_ready_and_says_what_it_does():
    context = FakeContext(slots=2)
    stages: list[str] = []
    Run(context, on_stage=stages.append).engine.close()
    assert stages == [
        "making the context",
        "computing the first batch",
        "measuring step costs",
        "serving requests",
    ]
    assert context.cells == [[], []]
    broken = FakeContext()
    broken.failures = 1
    with pytest.raises(DecodeError):
        Run(broken)


def test_a_batch_that_always_fails_ends_its_jobs_with_an_error():
    run = Run(context := FakeContext())
    context.failures = 1000
    run.finish([Job("a", (1, 2, 3), 5, GREEDY)])
    assert run.endings["a"].error.code is ErrorCode.INTERNAL


def test_an_engine_that_fails_says_so():
    context = FakeContext()
    context.is_broken = True
    run = Run(context)
    run.engine.submit(Job("a", (1, 2, 3), 5, GREEDY))
    assert run.crashed.get(timeout=20)


def test_a_long_prompt_is_prefilled_in_chunks_between_others_tokens():
    context = FakeContext(slots=2, n_ctx=512, n_batch=64)
    work = [
        Job("chat", (1, 2, 3), 100, GREEDY, ignore_eos=True),
        Job("long", tuple(i % 5 for i in range(400)), 1, GREEDY, ignore_eos=True),
    ]
    run = Run(context, measure=known(StepCosts(((1, 4.0), (2, 4.0)), 0.5))).finish(work)
    assert {job.key: run.tokens[job.key] for job in work} == {job.key: expected(job) for job in work}
    assert max(context.computed[2:40]) <= 8


@pytest.mark.parametrize(("is_sibling_busy", "rows"), [(False, 4), (True, 3)])
def test_steps_are_padded_by_what_they_cost_with_the_threads_in_use(is_sibling_busy, rows):
    alone = StepCosts(((1, 5.0), (3, 10.0), (4, 12.0)), 1.0)
    together = StepCosts(((1, 5.0), (3, 10.0), (4, 8.0)), 1.0)
    pool = CorePool(children=2, threads=2)
    pool.mark(1, is_busy=is_sibling_busy)
    context = FakeContext(slots=4)
    work = [Job(str(i), (i,), 10, GREEDY, ignore_eos=True) for i in range(3)]
    run = Run(context, pool.member(0), measure=lambda _: CostTable(((1, alone), (2, together))))
    run.finish(work)
    assert context.threads == (1 if is_sibling_busy else 2)
    # All sequences decode, except in the first steps and the last.
    assert set(context.computed[4:-4]) == {rows}
    assert {job.key: run.tokens[job.key] for job in work} == {job.key: expected(job) for job in work}


#: Eight rows cost little more than one, so guessing pays once guesses are right.
CHEAP_ROWS = StepCosts(((1, 5.0), (8, 7.0)), 1.0)


def echo(tokens: list[int]) -> int:
    """A model that repeats itself, except at every eleventh token."""
    return tokens[-6] if len(tokens) > 6 and len(tokens) % 11 else len(tokens) % 5


@settings(deadline=None, max_examples=40)
@given(prompts, st.integers(1, 400), memories)
def test_guessing_changes_no_token(prompt, count, memory):
    job = Job("a", prompt, count, GREEDY, ignore_eos=True)
    context = FakeContext(n_ctx=512, follows=echo, **memory)
    run = Run(context, measure=known(CHEAP_ROWS)).finish([job])
    assert run.tokens["a"] == expected(job, echo)


def test_guessing_takes_fewer_steps_for_a_lone_answer_that_repeats():
    job = Job("a", (1, 2, 3, 4, 5, 6), 200, GREEDY, ignore_eos=True)
    lengths = {}
    for speculates in (False, True):
        run = Run(FakeContext(n_ctx=512, follows=echo), measure=known(CHEAP_ROWS), speculates=speculates)
        lengths[speculates] = run.finish([job]).work.counts["steps"]
        assert run.tokens["a"] == expected(job, echo)
    assert lengths[True] < lengths[False] / 2
    assert run.work.counts["right"] > 0


class TimedContext(FakeContext):
    """Takes as long as ``costs`` say, and notes the threads of each batch."""

    def __init__(self, costs: StepCosts, **options: Any) -> None:
        super().__init__(**options)
        self.costs, self.now, self.threads_used = costs, 0.0, set[int]()

    def decode(self, rows: Sequence[Row]) -> None:
        super().decode(rows)
        self.now += self.costs.decode_ms(len(rows)) / 1e3
        self.threads_used.add(self.threads)


def test_checking_guesses_is_not_taken_for_a_lack_of_cores():
    alone, together = StepCosts(((1, 5.0), (8, 30.0)), 1.0), StepCosts(((1, 4.0), (8, 16.0)), 0.5)
    context = TimedContext(together, n_ctx=512, follows=echo)
    job = Job("a", (1, 2, 3, 4, 5, 6), 200, GREEDY, ignore_eos=True)
    table = CostTable(((1, alone), (2, together)))
    run = Run(context, CorePool(1, 2).member(0), measure=lambda _: table, clock=lambda: context.now).finish(
        [job]
    )
    assert run.work.counts["right"] > 0
    assert context.threads_used == {2}


def test_a_stop_inside_a_guess_ends_the_answer_there():
    def to_the_end(tokens: list[int]) -> int:
        return EOG if len(tokens) == 101 else echo(tokens)

    job = Job("a", (1, 2, 3, 4, 5, 6), 200, GREEDY)
    run = Run(FakeContext(n_ctx=512, follows=to_the_end), measure=known(CHEAP_ROWS)).finish([job])
    assert run.tokens["a"][-1] == EOG
    assert len(run.tokens["a"]) == 101 + 1 - len(job.prompt)
    assert run.endings["a"].reason is FinishReason.STOP


def test_a_deadline_ends_a_job_that_waits_for_a_slot():
    now = [0.0]
    run = Run(FakeContext(slots=1, n_ctx=4096), clock=lambda: now[0])
    run.engine.submit(Job("long", (1, 2, 3), 4000, GREEDY, ignore_eos=True))
    run.engine.submit(Job("late", (4, 5, 6), 4000, GREEDY, deadline=5.0, ignore_eos=True))
    now[0] = 6.0
    assert run.next_ended() == "late"
    assert run.endings["late"].error.code is ErrorCode.REQUEST_TIMEOUT
    run.engine.cancel("long")
    run.engine.close()


def test_a_cancelled_job_leaves_whatever_it_waits_for():
    """One is being prefilled, one waits for its prefix, one for its turn in prefill, and one for a slot."""
    shared = tuple(range(3000))
    context = SteppedContext(slots=3, n_ctx=4096, n_batch=32)
    run = Run(context, clock=lambda: 0.0)
    for key, prompt in (
        ("computes", (*shared, 1)),
        ("shares", (*shared, 2)),
        ("behind", shared[::-1]),
        ("waits", (7, 8)),
    ):
        run.engine.submit(Job(key, prompt, 5, GREEDY, ignore_eos=True))
    context.steps.release(3)
    for key in ("shares", "behind", "waits"):
        run.engine.cancel(key)
    run.engine.submit(Job("next", (9, 10), 2, GREEDY, ignore_eos=True))
    context.steps.release(10_000)
    assert {run.next_ended(), run.next_ended()} == {"computes", "next"}
    assert sum(context.computed) < len(shared) + 100
    run.engine.close()
