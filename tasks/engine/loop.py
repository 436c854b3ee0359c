"""The engine's loop: one thread owns the context; other threads send it messages and get deltas."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, replace
from math import inf
from queue import Empty, SimpleQueue
from threading import Thread

from tasks.contract.messages import ErrorCode, Failure
from tasks.engine.costs.pace import Pace
from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.engine.costs.threads import Threads
from tasks.engine.llama.context import Context
from tasks.engine.llama.first_batch import compute_first_batch
from tasks.engine.observer import Observer
from tasks.engine.residents import Residents
from tasks.engine.sequence import Delta, Job, Sequence
from tasks.engine.speculation import PromptLookup, draft_size
from tasks.engine.step.compute import Batch, Computer
from tasks.engine.step.recovery import Recovery
from tasks.engine.step.sample import TokenSampler
from tasks.engine.step.scheduler import Limits, Step, plan
from tasks.engine.text import TextAssembler
from tasks.engine.waiting import Waiting

logger = logging.getLogger(__name__)

#: Seconds that all the rest takes at most besides computing a step, unless it hangs.
BETWEEN_STEPS_S = 5.0

#: Receives one step's deltas on the engine's thread; must return soon and never raise.
Sink = Callable[[list[Delta]], None]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine works.

    Attributes:
        reuses_prefixes: let sequences start from other sequences' cells.
        speculates: guess a lone greedy sequence's next tokens if the measured costs say that it pays.
        measure: returns what steps cost on a context; ``None``: steps are planned without costs.
        clock: seconds, monotonic.
        on_crash: called when the loop fails. No job ends after that, so the process should exit.
        on_stage: called, until the engine is ready, with a few words on what it is doing.
    """

    reuses_prefixes: bool = True
    speculates: bool = True
    measure: Callable[[Context], CostTable] | None = None
    clock: Callable[[], float] = time.monotonic
    on_crash: Callable[[], None] = lambda: None
    on_stage: Callable[[str], None] = lambda _: None


class Engine:
    """Decodes many jobs at once on one context.

    ``submit``, ``cancel`` and ``close`` may be called from any thread. The sink gets at least one delta for
    every job that isn't cancelled; the job's last delta has an ending.
    """

    def __init__(
        self,
        make_context: Callable[[], Context],
        sink: Sink,
        threads: Threads,
        observer: Observer | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        """``make_context`` runs on the engine's thread; ``threads`` says how many threads may compute."""
        self._make_context = make_context
        self._sink = sink
        self._threads = threads
        self._observer = observer or Observer()
        self._options = options or EngineOptions()
        self._clock = self._options.clock
        #: A job to generate, a key to cancel, or None to close; each with the time when it was sent.
        self._inbox: SimpleQueue[tuple[Job | str | None, float]] = SimpleQueue()
        self._waiting = Waiting()
        self._is_open, self._started = True, 0.0
        #: When the step that is being computed is over at the latest, unless it hangs; on the engine's clock.
        self.due = inf
        self._ready: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    # ---- any thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the context, compute a first batch on it and begin.

        Raises:
            ModelError: the context can't be made.
            DecodeError: the first batch can't be computed on it.
        """
        self._thread.start()
        error = self._ready.get()
        if error is not None:
            raise error

    def submit(self, job: Job) -> None:
        """Send a job to be generated."""
        self._inbox.put((job, self._clock()))

    def cancel(self, key: str) -> None:
        """Drop a job before the next step; the sink gets no more deltas for it."""
        self._inbox.put((key, 0.0))

    def close(self) -> None:
        """Drop everything, free the context, and wait for the thread."""
        self._inbox.put((None, 0.0))
        self._thread.join()

    @property
    def num_running(self) -> int:
        """Number of jobs that hold a slot."""
        return len(self._residents)

    # ---- the engine's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._prepare()
        except BaseException as error:  # whatever it is, start() waits for it
            self._ready.put(error)
            return
        self._ready.put(None)
        try:
            while self._is_open:
                self._read_inbox()
                self.due = self._clock() + BETWEEN_STEPS_S
                self._admit()
                self._end_overdue()
                if self._residents:
                    self.step()
        except Exception:
            logger.critical("the engine failed; another child will run its requests", exc_info=True)
            self._options.on_crash()
        self._context.close()

    def _prepare(self) -> None:
        stage, measure = self._options.on_stage, self._options.measure
        stage("making the context")
        self._context = context = self._make_context()
        stage("computing the first batch")
        started = self._clock()
        compute_first_batch(context, self._threads.least)
        first_s = self._clock() - started
        stage("measuring step costs")
        table = None if measure is None else measure(context)
        self._pace = Pace(context, self._threads, table, first_s)
        self._residents = Residents(context, reuses=self._options.reuses_prefixes)
        self._computer = Computer(context, self._residents)
        self._sampler = TokenSampler(context, self._residents, self._observer, self._clock)
        self._recovery = Recovery(self._residents, self._waiting, self._give_up, self._observer)
        stage("serving requests")

    def step(self) -> None:
        """Plan, compute, sample, deliver, observe."""
        step = self._plan()
        self.due += self._pace.longest_s(step.num_rows, step.num_prefilled)
        batches = self._computer.compute(step)
        deltas = self._sample(batches)
        self._sink(deltas)
        self._observe(step, deltas)

    def _plan(self) -> Step:
        self._started = self._clock()
        costs = self._pace.begin(self._started)
        self._residents.share()
        loads = [seq for seq in self._residents if seq.waits_for is None]
        step = plan(loads, Limits(self._context.n_batch, costs=costs))
        return self._with_draft(step, costs)

    def _with_draft(self, step: Step, costs: StepCosts | None) -> Step:
        """The step, with a draft to check if a lone sequence decodes and the draft pays."""
        seq = next(iter(self._residents), None)
        if seq is None or seq.lookup is None or costs is None or len(self._residents) > 1 or not step.decode:
            return step
        room = min(
            self._context.n_ctx - len(seq.tokens),
            seq.job.max_tokens - seq.num_generated - 1,
            self._context.n_batch - 1,
        )
        size = min(draft_size(seq.lookup.trust(), costs), room)
        draft = tuple(seq.lookup.draft(max(0, size)))
        return replace(step, draft=draft, padding=0) if draft else step

    def _sample(self, batches: Iterable[Batch]) -> list[Delta]:
        """The deltas of all batches; each batch is sampled before the next one is computed."""
        deltas: list[Delta] = []
        for batch in batches:
            deltas += self._sampler.sample(batch) if batch.error is None else self._recovery.recover(batch)
        return deltas

    def _observe(self, step: Step, deltas: Sequence_[Delta]) -> None:
        now = self._clock()
        self._pace.end(step.num_rows, step.num_prefilled, now - self._started, now)
        self._observer.on_step(step, sum(len(delta.tokens) for delta in deltas), now - self._started)

    def _read_inbox(self) -> None:
        """Take every message; wait for one when there is nothing to compute."""
        is_idle = not self._residents and not self._waiting
        if is_idle:
            self.due = inf
            self._pace.rest()
        while True:
            try:
                what, when = self._inbox.get(block=is_idle)
            except Empty:
                return
            is_idle = False
            if isinstance(what, Job):
                self._waiting.add(_sequence(what, when, self._context))
            elif isinstance(what, str):
                self._drop(what)
            else:
                self._is_open = False
                return

    def _drop(self, key: str) -> None:
        self._waiting.drop(key)
        for seq in self._residents:
            if seq.job.key == key:
                self._residents.remove(seq)

    def _admit(self) -> None:
        for seq in self._waiting.admit_to(self._residents, self._clock()):
            # A wrong guess must be dropped again.
            can_guess = self._options.speculates and self._context.model.rewinds
            if can_guess and self._residents.sampler(seq).is_plain_greedy and seq.lookup is None:
                seq.lookup = PromptLookup(seq.tokens)

    def _end_overdue(self) -> None:
        now = self._clock()
        message = "The request took longer than its time limit and was stopped."
        failure = Failure(ErrorCode.REQUEST_TIMEOUT, message)
        late = [self._give_up(seq, failure) for seq in self._residents if seq.job.is_overdue(now)]
        for seq in self._waiting.overdue(now):
            late.append(self._sampler.end_without_slot(seq, failure))
        if late:
            self._sink(late)

    def _give_up(self, seq: Sequence, failure: Failure) -> Delta:
        return self._sampler.end(seq, error=failure)


def _sequence(job: Job, submitted: float, context: Context) -> Sequence:
    """A job's sequence, which continues after the tokens that earlier attempts delivered."""
    seq = Sequence(job, [*job.prompt, *job.delivered], TextAssembler(job.stop), submitted)
    for token in job.delivered:
        seq.assembler.feed(context.model.piece(token))
    return seq
