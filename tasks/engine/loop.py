"""The loop: one thread owns the context; everyone else sends it messages and gets deltas."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

from tasks.contract.messages import ErrorCode, Failure, FinishReason
from tasks.engine.costs.governor import Governor
from tasks.engine.costs.table import CostTable
from tasks.engine.costs.threads import Threads
from tasks.engine.llama.context import CacheFullError, Context, DecodeError, Row
from tasks.engine.llama.first_batch import compute_first_batch
from tasks.engine.load import Load
from tasks.engine.observer import Observer
from tasks.engine.residents import Residents
from tasks.engine.scheduler import Decode, Limits, Step, plan
from tasks.engine.sequence import Delta, Job, Sequence
from tasks.engine.speculation import PromptLookup, draft_size
from tasks.engine.text import TextAssembler

logger = logging.getLogger(__name__)

#: Receives one step's deltas on the engine's thread; must return soon and never raise.
Sink = Callable[[list[Delta]], None]
#: Times a sequence's batch may fail before its request is given up.
MAX_FAULTS = 2


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine works.

    Attributes:
        reuses_prefixes: start from other sequences' cells.
        speculates: guess a lone greedy sequence's next tokens, where the measured costs say that it pays.
        measure: says what steps cost on a context, to shape them by it; ``None`` shapes nothing.
        clock: seconds, monotonic.
        on_crash: called when the loop fails, after which no job will ever end: the process should.
        on_stage: told what the engine is doing until it is ready, in a few words.
    """

    reuses_prefixes: bool = True
    speculates: bool = True
    measure: Callable[[Context], CostTable] | None = None
    clock: Callable[[], float] = time.monotonic
    on_crash: Callable[[], None] = lambda: None
    on_stage: Callable[[str], None] = lambda _: None


class Engine:
    """Decodes many jobs at once on one context.

    ``submit``, ``cancel`` and ``close`` may be called from any thread. For every job the sink gets at
    least one delta, the last with an ending, unless the job was cancelled.
    """

    def __init__(
        self,
        make_context: Callable[[], Context],
        sink: Sink,
        threads: Threads,
        observer: Observer | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        """``make_context`` is called on the engine's own thread; ``threads`` says how many may compute."""
        self._make_context = make_context
        self._sink = sink
        self._threads = threads
        self._observer = observer or Observer()
        self._options = options or EngineOptions()
        self._clock = self._options.clock
        #: A job to generate, a key to cancel, or None to close; and when it was sent.
        self._inbox: SimpleQueue[tuple[Job | str | None, float]] = SimpleQueue()
        self._waiting: deque[Sequence] = deque()
        self._is_open = True
        self._is_full, self._num_when_full = False, 0
        self._ready: SimpleQueue[Exception | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    # ---- any thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the context, compute a first batch on it and begin.

        Raises:
            ModelError: the context can't be had.
            DecodeError: the model can't be computed on it.
        """
        self._thread.start()
        error = self._ready.get()
        if error is not None:
            raise error

    def submit(self, job: Job) -> None:
        """Have a job generated."""
        self._inbox.put((job, self._clock()))

    def cancel(self, key: str) -> None:
        """Drop a job before the next step; its sink hears no more of it."""
        self._inbox.put((key, 0.0))

    def close(self) -> None:
        """Drop everything, free the context, and wait for the thread."""
        self._inbox.put((None, 0.0))
        self._thread.join()

    @property
    def num_running(self) -> int:
        """Jobs that hold a slot."""
        return len(self._residents)

    # ---- the engine's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._prepare()
        except Exception as error:
            self._ready.put(error)
            return
        self._ready.put(None)
        try:
            self._loop()
        except Exception:
            logger.critical("the engine failed; its requests will be run elsewhere", exc_info=True)
            self._options.on_crash()
        self._context.close()

    def _loop(self) -> None:
        while self._is_open:
            self._read_inbox()
            self._admit()
            if self._residents:
                self._step()

    def _prepare(self) -> None:
        stage, measure = self._options.on_stage, self._options.measure
        stage("making the context")
        self._context = self._make_context()
        stage("computing the first batch")
        compute_first_batch(self._context, self._threads.least)
        self._residents = Residents(self._context, reuses=self._options.reuses_prefixes)
        stage("measuring step costs")
        self._costs = None if measure is None else measure(self._context)
        stage("serving requests")
        self._governor = Governor()
        #: Rows of each batch of next tokens, and guesses, that the present step has decoded.
        self._decoded: list[int] = []
        self._limits_by_threads: dict[int, Limits] = {}
        self._pauses = True

    def _step(self) -> None:
        """Plan, compute, sample, deliver."""
        started = self._clock()
        threads = self._governor.choose(self._threads.work(), started)
        self._context.use_threads(threads)
        self._limits = self._limits_with(threads)
        deltas = list(self._expire(started))
        self._residents.share()
        step = plan([_load(seq) for seq in self._residents if seq.waits_for is None], self._limits)
        self._residents.note_turns(step)
        self._decoded.clear()
        for batch in step.decode:
            deltas += self._decode(batch)
        deltas += self._prefill(step)
        self._judge(threads, step, started)
        self._sink(deltas)
        if step.exchange is not None:
            self._exchange(*step.exchange)
        num_tokens = sum(len(delta.tokens) for delta in deltas)
        self._observer.on_step(step, num_tokens, self._clock() - started)

    def _limits_with(self, threads: int) -> Limits:
        """What bounds and shapes a step with so many threads."""
        found = self._limits_by_threads.get(threads)
        if found is None:
            costs = None if self._costs is None else self._costs.at(threads)
            found = self._limits_by_threads[threads] = Limits(
                self._context.n_batch, costs=costs, pauses=self._pauses
            )
        return found

    def _exchange(self, a: int, b: int) -> None:
        """Let two sequences change places; where that can't be had, all decode in every step from now on."""
        if not self._residents.exchange(a, b):
            logger.warning("this model's cells can't be moved; steps leave nobody out any more")
            self._pauses = False
            self._limits_by_threads.clear()

    def _judge(self, threads: int, step: Step, started: float) -> None:
        """Tell the governor how the step went."""
        alone, now = self._limits_with(1).costs, self._clock()
        if alone is not None:
            alone_ms = sum(map(alone.decode_ms, self._decoded))
            alone_ms += step.num_prefilled * alone.prefill_ms
            self._governor.observe(threads, (now - started) * 1e3, alone_ms, now)

    def _read_inbox(self) -> None:
        """Take every message; wait for one when there is nothing to compute."""
        is_idle = not self._residents and not self._waiting
        if is_idle:
            self._threads.rest()
        while True:
            try:
                what, when = self._inbox.get(block=is_idle)
            except Empty:
                return
            is_idle = False
            if isinstance(what, Job):
                self._waiting.append(_sequence(what, when, self._context))
            elif isinstance(what, str):
                self._drop(what)
            else:
                self._is_open = False
                return

    def _drop(self, key: str) -> None:
        self._waiting = deque(seq for seq in self._waiting if seq.job.key != key)
        for seq in self._residents:
            if seq.job.key == key:
                self._residents.remove(seq)

    def _admit(self) -> None:
        # After a preemption nothing is let in until somebody has left: it would only be put back again.
        self._is_full = self._is_full and len(self._residents) == self._num_when_full
        while self._waiting and self._residents.has_room and not self._is_full:
            seq = self._waiting.popleft()
            seq.admitted = seq.admitted or self._clock()
            self._residents.add(seq)
            if (
                self._options.speculates
                and seq.lookup is None
                and self._residents.sampler(seq).is_plain_greedy
            ):
                seq.lookup = PromptLookup(seq.tokens)

    def _expire(self, now: float) -> Iterator[Delta]:
        for seq in self._residents:
            if seq.job.deadline is not None and now >= seq.job.deadline:
                message = "The request took longer than its time limit and was stopped."
                yield self._end(seq, error=Failure(ErrorCode.REQUEST_TIMEOUT, message))

    def _decode(self, batch: Decode) -> list[Delta]:
        seqs = [seq for slot in batch.slots if (seq := self._residents.get(slot)) is not None]
        if len(seqs) == len(self._residents) == 1 and (draft := self._draft(seqs[0])):
            self._decoded.append(1 + len(draft))
            return self._speculate(seqs[0], draft)
        self._decoded.append(len(batch.slots) + batch.padding)
        return self._compute([(seq, 1) for seq in seqs], self._residents.padding(batch.slots, batch.padding))

    def _draft(self, seq: Sequence) -> list[int]:
        """Guesses to check with a lone sequence's next token."""
        costs = self._limits.costs
        if seq.lookup is None or costs is None:
            return []
        room = min(self._context.n_ctx - len(seq.tokens), seq.job.max_tokens - seq.num_generated - 1)
        return seq.lookup.draft(max(0, min(draft_size(seq.lookup.trust(), costs), room)))

    def _speculate(self, seq: Sequence, draft: list[int]) -> list[Delta]:
        """Compute the newest token and guesses after it in one batch, and keep the guesses that are right."""
        start = seq.computed
        tokens = [seq.tokens[-1], *draft]
        rows = [Row(token, start + i, seq.slot, is_output=True) for i, token in enumerate(tokens)]
        try:
            self._context.decode(rows)
        except CacheFullError:
            return self._put_back_youngest([seq])
        except DecodeError as error:
            return list(self._recover(seq, error))
        chosen = self._context.greedy(len(rows))
        right = next((i for i, guess in enumerate(draft) if chosen[i] != guess), len(draft))
        seq.computed = start + 1 + right
        if not self._context.trim(seq.slot, seq.computed):
            self._residents.forget(seq)
        self._observer.on_draft(len(draft), right)
        return self._advance_all(seq, chosen[: right + 1])

    def _advance_all(self, seq: Sequence, tokens: Sequence_[int]) -> list[Delta]:
        """One delta of several tokens, up to one that ends the sequence."""
        now, text, taken = self._clock(), "", []
        for token in tokens:
            delta = self._advance(seq, token, now)
            text += delta.text
            taken.append(token)
            if delta.ending is not None:
                return [Delta(seq.job.key, text, tuple(taken), delta.ending)]
        return [Delta(seq.job.key, text, tuple(taken))]

    def _prefill(self, step: Step) -> list[Delta]:
        chunks = [
            (seq, size) for slot, size in step.prefill if (seq := self._residents.get(slot)) is not None
        ]
        return self._compute(chunks)

    def _compute(self, chunks: list[tuple[Sequence, int]], padding: Sequence_[Row] = ()) -> list[Delta]:
        """Compute a batch of chunks, and sample those sequences whose tokens are all computed."""
        if not chunks:
            return []
        rows = [row for seq, size in chunks for row in _rows(seq, size)]
        try:
            self._context.decode([*rows, *padding])
        except CacheFullError:
            return self._put_back_youngest([seq for seq, _ in chunks])
        except DecodeError as error:
            self._residents.unpad(padding)
            return [delta for seq, _ in chunks for delta in self._recover(seq, error)]
        for seq, size in chunks:
            seq.computed += size
        self._residents.unpad(padding)
        return self._sample([seq for seq, _ in chunks], rows)

    def _put_back_youngest(self, seqs: Iterable[Sequence]) -> list[Delta]:
        """Make room: the sequence admitted last waits and is computed anew when there is some."""
        youngest = max(self._residents, key=lambda seq: seq.admitted)
        if len(self._residents) == 1 and youngest.num_faults >= MAX_FAULTS:
            message = "The KV cache has no room for this request alone; lower --n-ctx or --slots."
            return [self._end(youngest, error=Failure(ErrorCode.INTERNAL, message))]
        youngest.num_faults += len(self._residents) == 1
        self._residents.evict(youngest)
        youngest.computed, youngest.waits_for = 0, None
        self._waiting.appendleft(youngest)
        self._num_when_full = len(self._residents)
        self._is_full = self._num_when_full > 0
        self._observer.on_preemption()
        return [Delta(seq.job.key) for seq in seqs]

    def _recover(self, seq: Sequence, error: Exception) -> Iterator[Delta]:
        """Compute a sequence anew after its batch failed, or give it up."""
        seq.num_faults += 1
        logger.error("a batch failed (%s), job %s, fault %d", error, seq.job.key, seq.num_faults)
        if seq.num_faults > MAX_FAULTS:
            yield self._end(seq, error=Failure(ErrorCode.INTERNAL, f"The model could not be run: {error}"))
        else:
            self._residents.forget(seq)

    def _sample(self, seqs: list[Sequence], rows: list[Row]) -> list[Delta]:
        outputs = [i for i, row in enumerate(rows) if row.is_output]
        tokens = self._choose([seq for seq in seqs if seq.remaining == 0], outputs)
        now = self._clock()
        return [
            self._advance(seq, tokens[seq.slot], now) if seq.slot in tokens else Delta(seq.job.key)
            for seq in seqs
        ]

    def _choose(self, seqs: list[Sequence], rows: list[int]) -> dict[int, int]:
        """The next token of each slot: greedy ones in one sweep, the others by their chains."""
        samplers = [self._residents.sampler(seq) for seq in seqs]
        greedy = self._context.greedy(len(rows)) if any(s.is_plain_greedy for s in samplers) else []
        return {
            seq.slot: greedy[i] if sampler.is_plain_greedy else sampler.sample(self._context, row)
            for i, (seq, row, sampler) in enumerate(zip(seqs, rows, samplers, strict=True))
        }

    def _advance(self, seq: Sequence, token: int, now: float) -> Delta:
        """Take a sampled token in: its text, and whether it is the last."""
        model = self._context.model
        seq.add(token, now)
        if model.is_eog(token) and not seq.job.ignore_eos:
            return self._end(seq, FinishReason.STOP, seq.assembler.finish(), (token,))
        text = seq.assembler.feed(model.piece(token))
        if seq.assembler.is_stopped:
            return self._end(seq, FinishReason.STOP, text, (token,))
        if seq.num_generated >= seq.job.max_tokens or len(seq.tokens) > self._context.n_ctx:
            return self._end(seq, FinishReason.LENGTH, text + seq.assembler.finish(), (token,))
        return Delta(seq.job.key, text, (token,))

    def _end(
        self,
        seq: Sequence,
        reason: FinishReason | None = None,
        text: str = "",
        tokens: tuple[int, ...] = (),
        error: Failure | None = None,
    ) -> Delta:
        ending = seq.ending(reason, error)
        self._residents.remove(seq)
        self._observer.on_end(ending)
        return Delta(seq.job.key, text, tokens, ending)


def _sequence(job: Job, submitted: float, context: Context) -> Sequence:
    """A sequence that goes on after what earlier attempts delivered."""
    seq = Sequence(job, [*job.prompt, *job.delivered], TextAssembler(job.stop), submitted)
    for token in job.delivered:
        seq.assembler.feed(context.model.piece(token))
    return seq


def _load(seq: Sequence) -> Load:
    return Load(seq.slot, seq.remaining, seq.is_decoding, seq.computed, seq.lag, seq.has_paused)


def _rows(seq: Sequence, size: int) -> Iterator[Row]:
    last = len(seq.tokens) - 1
    for pos in range(seq.computed, seq.computed + size):
        yield Row(seq.tokens[pos], pos, seq.slot, pos == last)
