"""A worker child: one engine, one deliverer and one registration, all built here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Event as Flag
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from tasks.contract.messages import ErrorCode, Failure
from tasks.contract.status import Child
from tasks.contract.versions import UnsupportedVersionError
from tasks.engine.costs.known import known_costs
from tasks.engine.costs.shared_note import SharedNote
from tasks.engine.costs.threads import Threads
from tasks.engine.llama.context import Context
from tasks.engine.llama.fingerprint import fingerprint
from tasks.engine.llama.model import Model
from tasks.engine.loop import Engine, EngineOptions
from tasks.engine.prompt import PromptBuilder, PromptError
from tasks.engine.sequence import Job
from tasks.store.board import Board
from tasks.store.connect import connect
from tasks.store.foreign_keys import foreign_keys
from tasks.store.requests import RequestStore
from tasks.telemetry.tally import Tally
from tasks.telemetry.work_counter import WorkCounter
from tasks.worker.attempt import Attempt
from tasks.worker.attempt_log import attempt_observers
from tasks.worker.attempt_store import Append, AttemptStore, SuspectError, new_fence
from tasks.worker.deliver import Deliverer
from tasks.worker.heartbeat import Heartbeat, Signs
from tasks.worker.liveness.preparing import NotWantedError, Preparing
from tasks.worker.liveness.pulse import Pulse

if TYPE_CHECKING:
    from tasks.settings import WorkerSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A command that Redis doesn't answer is repeated for a few seconds; all our commands may be repeated.
_REPEATING: dict[str, Any] = {"retry": Retry(ExponentialBackoff(cap=1.0, base=0.05), retries=5)}

#: Seconds between two looks whether a suspect that waits for its turn is over.
PROBE_S = 0.25
_CLAIMING = "Beginning a request"
#: Seconds until a request of a newer format goes back to its queue. Its message did not give the format, or
#: it would have stayed there. Without this pause, this worker would take it again and again.
NEWER_PAUSE_S = 2.0


class HandedBackError(Exception):
    """This child is leaving: another child has to continue the request."""


@dataclass(frozen=True, slots=True)
class Share:
    """A child's share of its worker host.

    Attributes:
        worker: the Celery node's name.
        index: the child's number, which a dead child's replacement takes over.
        slots: sequences that it may decode at once.
        threads: how many threads it may compute with.
        tally: where it counts what it does.
        step_costs: where the first child that measures what steps cost notes it for all children.
        on_stage: notes for the parent what the child is doing.
        on_beat: notes for the parent that the child gets on.
        chat_template: text of the chat template; ``None``: the model's own.
        parents_troubles: what Redis refuses to the parent, which the child tells everybody; empty: nothing.
    """

    worker: str
    index: int
    slots: int
    threads: Threads
    tally: Tally
    step_costs: SharedNote
    on_stage: Callable[[str], None] = lambda _: None
    on_beat: Callable[[], None] = lambda: None
    chat_template: str | None = None
    parents_troubles: Callable[[], str] = str


class WorkerChild:
    """Runs requests on one context, several at a time, each in a separate thread."""

    def __init__(self, settings: WorkerSettings, model: Model, share: Share) -> None:
        """Build the child without starting anything."""
        self._settings, self._leaving, self._probing = settings, Flag(), Lock()
        self._backoff = ExponentialBackoff(cap=2.0, base=0.05)
        client = connect(settings.redis_url, **_REPEATING)
        self._board = board = Board(partial(foreign_keys, client))
        self._store = RequestStore(client, settings.result_ttl)
        self._attempts = AttemptStore(client, settings.result_ttl)
        on_append = partial(share.tally.observe, "append")
        self._deliverer = Deliverer(self._attempts, settings.stream_interval, on_append, board)
        self._observers, self._work = attempt_observers(settings), WorkCounter(share.tally)
        self._card = _card(settings, model, share)
        self._prompts = PromptBuilder(model, self._card.n_ctx, share.chat_template)
        self._preparing = Preparing()
        make_context = partial(
            Context,
            model,
            slots=share.slots,
            n_ctx=self._card.n_ctx,
            n_batch=settings.n_batch,
            threads=share.threads.most,
        )
        options = self._options(share)
        self._engine = Engine(make_context, self._deliverer.put, share.threads, self._work, options)
        signs = Signs(self._num_busy, lambda: self._work.counts, share.parents_troubles)
        self._heart = Heartbeat(client, self._card, model.path, signs, board)
        self._pulse = Pulse(share.on_beat, self._gets_on)

    def _options(self, share: Share) -> EngineOptions:
        measure = partial(known_costs, threads=share.threads, note=share.step_costs)
        return EngineOptions(
            reuses_prefixes=self._settings.prefix_cache,
            speculates=self._settings.speculation,
            measure=measure if self._settings.step_shaping else None,
            # A child is useless without its engine: let it die, so that its requests run elsewhere.
            on_crash=partial(os._exit, 70),
            on_stage=share.on_stage,
        )

    def start(self) -> None:
        """Have the engine compute something, then register. Raises what :meth:`Engine.start` raises."""
        self._engine.start()
        self._deliverer.start(self._engine.cancel)
        self._heart.start()
        self._pulse.start()
        logger.info(
            "child ready: %d slots of %d tokens for model %s",
            self._card.slots,
            self._card.n_ctx,
            self._card.model,
        )

    def close(self) -> None:
        """Withdraw the registration and free the context; later attempts continue running requests."""
        self.hand_back()
        self._heart.close()
        self._pulse.close()
        for observer in self._observers:
            observer.on_close()

    def hand_back(self) -> None:
        """Stop generating, deliver what there is, and end every :meth:`run` with ``HandedBackError``."""
        self._leaving.set()
        self._engine.close()  # its thread has ended, so no more tokens come
        self._deliverer.close()

    def run(self, request_id: str) -> None:
        """Generate a request to its end, or to the end of this attempt.

        Raises:
            HandedBackError: this child is leaving, and the request is not over; or a worker of a newer
                release has to run it.
        """
        try:
            attempt = self._begin_in_turn(request_id)
        except UnsupportedVersionError as error:
            logger.warning("%s; it goes back into the queue", error)
            self._leaving.wait(NEWER_PAUSE_S)
            raise HandedBackError(request_id) from None
        if attempt is None:
            return
        attempt.over.wait()
        self._tell(attempt)
        if attempt.is_handed_back:
            raise HandedBackError(request_id)

    def _begin_in_turn(self, request_id: str) -> Attempt | None:
        """Begin a request, a suspect only when no other one is being tried.

        A suspect may be killing its children, or it only shared a child with the one that does. Only one at a
        time begins, beside requests that have delivered something. Then only the one that kills its children
        dies again without getting any further.
        """
        suspect_from = max(1, self._settings.max_attempts - 1)
        with suppress(SuspectError):
            return self._begin(request_id, suspect_from)
        while not self._probing.acquire(timeout=PROBE_S):
            with suppress(SuspectError):  # raised as long as the request waits
                return self._begin(request_id, suspect_from)
        try:
            attempt = self._begin(request_id)
            if attempt is not None:
                attempt.proven.wait()
            return attempt
        finally:
            self._probing.release()

    def _begin(self, request_id: str, suspect_from: float | None = None) -> Attempt | None:
        """Claim a request and begin to generate it; ``None`` when there is nothing (more) to do.

        Raises:
            SuspectError: the request has ``suspect_from`` deaths.
        """
        limit = self._settings.max_attempts
        # One fence for all tries: if the answer to a claim was lost, the next try gets it again.
        args = request_id, self._card.id, limit, suspect_from, new_fence()
        attempt = self._insist(partial(self._attempts.claim, *args))
        return attempt if attempt is not None and self._is_started(attempt) else None

    def _is_started(self, attempt: Attempt) -> bool:
        try:
            self._start(attempt)
        except PromptError as error:
            self._fail(attempt, error.failure)
        except HandedBackError:
            raise
        except Exception:
            # The task must not end with an error: Celery would acknowledge it and lose the request.
            logger.exception("request %s can't be started", attempt.id)
            failure = Failure(ErrorCode.INTERNAL, "The request can't be started; see the worker's log.")
            self._fail(attempt, failure)
        else:
            return True
        return False

    def _num_busy(self) -> int:
        return min(self._card.slots, self._engine.num_running + len(self._preparing))

    def _gets_on(self) -> bool:
        """Whether nothing hangs: neither a step nor a prompt that is being made into tokens."""
        return monotonic() < self._engine.due and self._preparing.gets_on()

    def _insist(self, action: Callable[[], T]) -> T:
        """Do something in Redis; repeat it while Redis is away. Raises ``HandedBackError`` when leaving."""
        for failures in count(1):
            if self._leaving.is_set():
                break
            try:
                found = action()
            except redis.RedisError as error:
                self._board.note(_CLAIMING, error)
                self._leaving.wait(self._backoff.compute(failures))
            else:
                self._board.over(_CLAIMING)
                return found
        raise HandedBackError

    def _start(self, attempt: Attempt) -> None:
        self._deliverer.add(attempt)
        if self._leaving.is_set():
            raise HandedBackError(attempt.id)
        try:
            job = self._job(attempt)
        except NotWantedError:
            return
        attempt.submitted_at = monotonic()
        if attempt.over.is_set():
            return
        self._engine.submit(job)
        # It may have become over since; the deliverer's own cancel may have come before the job.
        if attempt.over.is_set():
            self._engine.cancel(attempt.key)

    def _job(self, attempt: Attempt) -> Job:
        """What the engine has to generate. Raises ``NotWantedError`` if the attempt is over meanwhile."""
        request = attempt.request
        with self._preparing.prompt_of(attempt) as check:
            prompt, max_tokens = self._prompts.build(request, check)
        delivered = self._delivered(attempt)
        attempt.prompt_tokens, attempt.num_delivered = len(prompt), len(delivered)
        return Job(
            key=attempt.key,
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=request.sampling,
            stop=request.stop,
            ignore_eos=request.ignore_eos,
            delivered=delivered,
            deadline=attempt.deadline,
            owner="" if self._settings.share_prefixes else attempt.owner,
        )

    def _delivered(self, attempt: Attempt) -> tuple[int, ...]:
        """The tokens that earlier attempts delivered: generation goes on after them."""
        if attempt.first_seq == 0:
            return ()
        log = self._insist(partial(self._store.read_log, attempt.id))
        return tuple(t for event in log for t in event.tokens)

    def _fail(self, attempt: Attempt, failure: Failure) -> None:
        self._deliverer.remove(attempt)
        end = attempt.failed(failure)
        item = Append(attempt.id, attempt.number, attempt.seq + 1, end=end, fence=attempt.fence)
        self._insist(partial(self._attempts.append, [item]))
        attempt.end = end
        self._tell(attempt)

    def _tell(self, attempt: Attempt) -> None:
        for observer in self._observers:
            observer.on_over(attempt)


def _card(settings: WorkerSettings, model: Model, share: Share) -> Child:
    """What the child registers about itself."""
    n_ctx = min(settings.n_ctx, model.n_ctx_train or settings.n_ctx)
    return Child(
        id=f"{share.worker}/{os.getpid()}",
        worker=share.worker,
        pid=os.getpid(),
        model=settings.served_name or "",
        n_ctx=n_ctx,
        slots=share.slots,
        index=share.index,
        kernels=str(model.kernels),
        fingerprint=fingerprint(model, n_ctx, share.chat_template),
    )
