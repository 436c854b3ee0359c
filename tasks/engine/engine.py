"""The loop: one thread owns the context; everyone else sends it messages and gets deltas."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread

from tasks.engine.cores import Threads
from tasks.engine.model import CacheFullError, Context, DecodeError, Row, Sampler
from tasks.engine.observer import Observer
from tasks.engine.scheduler import Limits, Load, Step, plan
from tasks.engine.sequence import Delta, Job, Sequence
from tasks.engine.slots import SlotTable
from tasks.engine.text import TextAssembler
from tasks.messages import ErrorCode, Failure, FinishReason

logger = logging.getLogger(__name__)

#: Receives one step's deltas on the engine's thread; must return soon and never raise.
Sink = Callable[[list[Delta]], None]
#: Times a sequence's batch may fail before its request is given up.
MAX_FAULTS = 2


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``make_context`` is called on the engine's own thread; ``threads`` says how many may compute."""
        self._make_context = make_context
        self._sink = sink
        self._threads = threads
        self._observer = observer or Observer()
        self._clock = clock
        #: A job to generate, a key to cancel, or None to close; and when it was sent.
        self._inbox: SimpleQueue[tuple[Job | str | None, float]] = SimpleQueue()
        self._waiting: deque[tuple[Job, float]] = deque()
        self._running: dict[int, Sequence] = {}
        self._samplers: dict[int, Sampler] = {}
        self._is_open = True
        self._ready: SimpleQueue[Exception | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    # ---- any thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the context and begin. Raises :class:`~tasks.engine.model.ModelError` if that fails."""
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
        return len(self._running)

    # ---- the engine's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._context = self._make_context()
        except Exception as error:
            self._ready.put(error)
            return
        self._slots = SlotTable(self._context.slots)
        self._limits = Limits(self._context.n_batch)
        self._ready.put(None)
        while self._is_open:
            self._read_inbox()
            self._admit()
            if self._running:
                self._step()
        self._context.close()

    def _step(self) -> None:
        """Plan, compute, sample, deliver."""
        started = self._clock()
        self._context.use_threads(self._threads.work())
        step = plan([self._load(seq) for seq in self._running.values()], self._limits)
        deltas = [*self._expire(started), *self._decode(step), *self._prefill(step)]
        self._sink(deltas)
        self._observer.on_step(step, self._clock() - started)

    def _read_inbox(self) -> None:
        """Take every message; wait for one when there is nothing to compute."""
        is_idle = not self._running and not self._waiting
        if is_idle:
            self._threads.rest()
        while True:
            try:
                what, when = self._inbox.get(block=is_idle)
            except Empty:
                return
            is_idle = False
            if isinstance(what, Job):
                self._waiting.append((what, when))
            elif isinstance(what, str):
                self._drop(what)
            else:
                self._is_open = False
                return

    def _drop(self, key: str) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0].key != key)
        for seq in [seq for seq in self._running.values() if seq.job.key == key]:
            self._release(seq)

    def _admit(self) -> None:
        while self._waiting and self._slots.num_free:
            self._start_sequence(*self._waiting.popleft())

    def _start_sequence(self, job: Job, submitted: float) -> None:
        tokens = [*job.prompt, *job.delivered]
        slot, reused = self._slots.take(tokens)
        if not self._context.trim(slot, reused):
            self._context.trim(slot, 0)
            reused = 0
        seq = Sequence(job, slot, tokens, TextAssembler(job.stop), submitted, self._clock(), reused, reused)
        for token in job.delivered:
            seq.assembler.feed(self._context.model.piece(token))
        self._samplers[slot] = Sampler(self._context.model, job.sampling)
        self._samplers[slot].accept(job.delivered)
        self._running[slot] = seq

    @staticmethod
    def _load(seq: Sequence) -> Load:
        return Load(seq.slot, seq.remaining, seq.is_decoding)

    def _expire(self, now: float) -> Iterator[Delta]:
        for seq in list(self._running.values()):
            if seq.job.deadline is not None and now >= seq.job.deadline:
                failure = Failure(
                    ErrorCode.REQUEST_TIMEOUT, "The request took longer than its time limit and was stopped."
                )
                yield self._end(seq, error=failure)

    def _decode(self, step: Step) -> list[Delta]:
        seqs = [self._running[slot] for slot in step.decode if slot in self._running]
        return self._compute([(seq, 1) for seq in seqs]) if seqs else []

    def _prefill(self, step: Step) -> list[Delta]:
        chunks = [(self._running[slot], size) for slot, size in step.prefill if slot in self._running]
        return self._compute(chunks) if chunks else []

    def _compute(self, chunks: list[tuple[Sequence, int]]) -> list[Delta]:
        """Compute a batch of chunks, and sample those sequences whose tokens are all computed."""
        rows = [row for seq, size in chunks for row in _rows(seq, size)]
        try:
            self._context.decode(rows)
        except (DecodeError, CacheFullError) as error:
            return [delta for seq, _ in chunks for delta in self._recover(seq, error)]
        for seq, size in chunks:
            seq.computed += size
        return self._sample([seq for seq, _ in chunks], rows)

    def _recover(self, seq: Sequence, error: Exception) -> Iterator[Delta]:
        """Compute a sequence anew after its batch failed, or give it up."""
        seq.num_faults += 1
        logger.error("a batch failed (%s), job %s, fault %d", error, seq.job.key, seq.num_faults)
        if seq.num_faults > MAX_FAULTS:
            yield self._end(seq, error=Failure(ErrorCode.INTERNAL, f"The model could not be run: {error}"))
        else:
            self._context.trim(seq.slot, 0)
            seq.computed = 0

    def _sample(self, seqs: list[Sequence], rows: list[Row]) -> list[Delta]:
        outputs = [i for i, row in enumerate(rows) if row.is_output]
        tokens = self._choose([rows[i].seq for i in outputs], outputs)
        now = self._clock()
        return [
            self._advance(seq, tokens[seq.slot], now) if seq.slot in tokens else Delta(seq.job.key)
            for seq in seqs
        ]

    def _choose(self, slots: list[int], rows: list[int]) -> dict[int, int]:
        """The next token of each slot: greedy ones in one sweep, the others by their chains."""
        samplers = [self._samplers[slot] for slot in slots]
        greedy = self._context.greedy(len(rows)) if any(s.is_plain_greedy for s in samplers) else []
        return {
            slot: greedy[i] if sampler.is_plain_greedy else sampler.sample(self._context, row)
            for i, (slot, row, sampler) in enumerate(zip(slots, rows, samplers, strict=True))
        }

    def _advance(self, seq: Sequence, token: int, now: float) -> Delta:
        """Take a sampled token in: its text, and whether it is the last."""
        model = self._context.model
        seq.times.append(now)
        seq.num_new += 1
        if model.is_eog(token) and not seq.job.ignore_eos:
            return self._end(seq, FinishReason.STOP, seq.assembler.finish(), (token,))
        seq.tokens.append(token)
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
        self._release(seq)
        self._observer.on_end(ending)
        return Delta(seq.job.key, text, tokens, ending)

    def _release(self, seq: Sequence) -> None:
        del self._running[seq.slot]
        self._samplers.pop(seq.slot).close()
        self._slots.release(seq.slot, seq.tokens[: seq.computed])


def _rows(seq: Sequence, size: int) -> Iterator[Row]:
    last = len(seq.tokens) - 1
    for pos in range(seq.computed, seq.computed + size):
        yield Row(seq.tokens[pos], pos, seq.slot, pos == last)
