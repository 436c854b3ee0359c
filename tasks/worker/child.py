"""What a worker child is made of: one engine, one deliverer, one registration. Built in this one place."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from threading import Event as Flag
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from tasks.contract.messages import ErrorCode, Failure
from tasks.contract.versions import UnsupportedVersionError
from tasks.engine.costs.known import known_costs
from tasks.engine.costs.shared_note import SharedNote
from tasks.engine.costs.threads import Threads
from tasks.engine.llama.model import Context, Model
from tasks.engine.loop import Engine, EngineOptions
from tasks.engine.prompt import PromptBuilder, PromptError
from tasks.engine.sequence import Job
from tasks.store import last_words
from tasks.store.connect import connect
from tasks.store.registry import HEARTBEAT_S, Child, Registry, ServedModel
from tasks.store.requests import Append, Claim, RequestStore, SuspectError, new_fence
from tasks.telemetry.tally import Tally
from tasks.telemetry.work_counter import WorkCounter
from tasks.worker.attempt import Run
from tasks.worker.deliver import Deliverer
from tasks.worker.observers import attempt_observers

if TYPE_CHECKING:
    from tasks.settings import WorkerSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A command that Redis doesn't answer is repeated for a few seconds; all of ours may be.
REDIS_OPTIONS: dict[str, Any] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 2.0,
    "socket_keepalive": True,
    "retry": Retry(ExponentialBackoff(cap=1.0, base=0.05), retries=5),
    "retry_on_error": [redis.ConnectionError, redis.TimeoutError],
}

#: Seconds until a request of a newer format goes back to its queue. Its message did not say what it is, or it
#: would have stayed there; put back at once, it would be taken by this worker again and again.
NEWER_PAUSE_S = 2.0


class HandedBackError(Exception):
    """This child is leaving: the request is to be continued by another."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a child has of its worker host.

    Attributes:
        worker: the Celery node's name.
        index: the child's number, which a dead one leaves to its replacement.
        slots: sequences that it may decode at once.
        threads: how many threads it may compute with.
        tally: where it counts what it does.
        step_costs: where the first child to measure them notes for all what steps cost.
        on_stage: notes for its parent what it is doing.
    """

    worker: str
    index: int
    slots: int
    threads: Threads
    tally: Tally
    step_costs: SharedNote
    on_stage: Callable[[str], None] = lambda _: None


class WorkerChild:
    """Runs requests on one context, several at a time, each from a thread of its own."""

    def __init__(self, settings: WorkerSettings, model: Model, share: Share) -> None:
        """Nothing is started yet."""
        self._settings, threads, worker = settings, share.threads, share.worker
        self._redis = client = connect(settings.redis_url, **REDIS_OPTIONS)
        self._store = RequestStore(client, settings.result_ttl)
        self._registry = Registry(client)
        on_append = partial(share.tally.observe, "append")
        self._deliverer = Deliverer(self._store, settings.stream_interval, on_append)
        n_ctx = min(settings.n_ctx, model.n_ctx_train or settings.n_ctx)
        make_context = partial(
            Context, model, slots=share.slots, n_ctx=n_ctx, n_batch=settings.n_batch, threads=threads.most
        )
        self._observers = attempt_observers(settings)
        self._work = WorkCounter(share.tally)
        self._engine = Engine(make_context, self._deliverer.put, threads, self._work, self._options(share))
        self._prompts = PromptBuilder(model, n_ctx)
        self._model = model
        name = settings.served_name or ""
        self._card = Child(
            f"{worker}/{os.getpid()}",
            worker,
            os.getpid(),
            name,
            n_ctx,
            share.slots,
            index=share.index,
            kernels=str(model.kernels),
        )
        self._closing, self._leaving = Flag(), Flag()
        self._probing = Lock()
        self._backoff = ExponentialBackoff(cap=1.0, base=0.05)
        self._heart = Thread(target=self._beat, name="heartbeat", daemon=True)

    def _options(self, share: Share) -> EngineOptions:
        measure = partial(known_costs, threads=share.threads, note=share.step_costs)
        return EngineOptions(
            reuses_prefixes=self._settings.prefix_cache,
            speculates=self._settings.speculation,
            measure=measure if self._settings.step_shaping else None,
            # Without its engine a child is of no use: its death hands its requests on.
            on_crash=partial(os._exit, 70),
            on_stage=share.on_stage,
        )

    def start(self) -> None:
        """Have the engine compute something, then say so. Raises what :meth:`Engine.start` raises."""
        self._engine.start()
        self._deliverer.start(self._engine.cancel)
        self._heart.start()
        logger.info(
            "child ready: %d slots of %d tokens for model %s",
            self._card.slots,
            self._card.n_ctx,
            self._card.model,
        )

    def close(self) -> None:
        """Withdraw, and free the context; requests that run are left to a later attempt."""
        self._closing.set()
        self.hand_back()
        self._heart.join()
        for observer in self._observers:
            observer.on_close()

    def hand_back(self) -> None:
        """Stop generating, deliver what there is, and end every :meth:`run` with ``HandedBackError``."""
        self._leaving.set()
        self._engine.close()  # its thread has ended: nothing comes after what is now delivered
        self._deliverer.close()

    def run(self, request_id: str) -> None:
        """Generate a request to its end, or to the end of this attempt.

        Raises:
            HandedBackError: this child is leaving, and the request is not over; or another worker, of a
                newer release, has to run it.
        """
        try:
            run = self._begin(request_id, max(1, self._settings.max_attempts - 1))
        except UnsupportedVersionError as error:
            logger.warning("%s; it goes back into the queue", error)
            self._leaving.wait(NEWER_PAUSE_S)
            raise HandedBackError(request_id) from None
        except SuspectError:
            # It may be what kills its children, or has merely shared one with that. Alone with those that
            # have got somewhere, only the culprit dies once more without getting any further.
            with self._probing:
                run = self._begin(request_id)
                if run is not None:
                    run.proven.wait()
        if run is None:
            return
        run.over.wait()
        self._tell(run)
        if run.is_handed_back:
            raise HandedBackError(request_id)

    def _begin(self, request_id: str, suspect_from: float | None = None) -> Run | None:
        """Claim a request and have it generated; ``None`` when there is nothing (more) to do.

        Raises:
            SuspectError: it has ``suspect_from`` deaths.
        """
        limit = self._settings.max_attempts
        # One fence for all tries: a claim whose answer was lost is found to be this child's.
        args = request_id, self._card.id, limit, suspect_from, new_fence()
        claim = self._insist(partial(self._store.claim, *args))
        run = None if claim is None else Run(claim, claim.seq)
        return run if run is not None and self._is_started(run) else None

    def _is_started(self, run: Run) -> bool:
        try:
            self._start(run, run.claim)
        except PromptError as error:
            self._fail(run, error.failure)
        except HandedBackError:
            raise
        except Exception:
            # The task must not end with an error: Celery would acknowledge it, and the request be lost.
            logger.exception("request %s can't be started", run.id)
            failure = Failure(ErrorCode.INTERNAL, "The request can't be started; see the worker's log.")
            self._fail(run, failure)
        else:
            return True
        return False

    def _insist(self, action: Callable[[], T]) -> T:
        """Do something in Redis, as soon as it is there. Raises ``HandedBackError`` when leaving."""
        for failures in count(1):
            if self._leaving.is_set():
                break
            try:
                return action()
            except redis.RedisError as error:
                logger.warning("Redis is away, trying again: %s", error)
                self._leaving.wait(self._backoff.compute(failures))
        raise HandedBackError

    def _start(self, run: Run, claim: Claim) -> None:
        prompt, max_tokens = self._prompts.build(claim.request)
        delivered = self._delivered(claim)
        run.prompt_tokens, run.num_delivered = len(prompt), len(delivered)
        self._deliverer.add(run)
        run.submitted_at = monotonic()
        request = claim.request
        self._engine.submit(
            Job(
                key=run.key,
                prompt=prompt,
                max_tokens=max_tokens,
                sampling=request.sampling,
                stop=request.stop,
                ignore_eos=request.ignore_eos,
                delivered=delivered,
                deadline=run.deadline,
            )
        )

    def _delivered(self, claim: Claim) -> tuple[int, ...]:
        """The tokens that earlier attempts delivered: generation goes on after them."""
        if claim.seq == 0:
            return ()
        log = self._insist(partial(self._store.read_log, claim.request.id))
        return tuple(t for event in log for t in event.tokens)

    def _fail(self, run: Run, failure: Failure) -> None:
        claim = run.claim
        item = Append(run.id, claim.attempt, run.seq + 1, end=run.failed(failure), fence=claim.fence)
        self._insist(partial(self._store.append, [item]))
        run.end = item.end
        self._tell(run)

    def _tell(self, run: Run) -> None:
        for observer in self._observers:
            observer.on_over(run)

    def _beat(self) -> None:
        """Keep this child's registration alive; Redis being away is no reason to stop."""
        self._try(self._introduce)
        while not self._closing.wait(HEARTBEAT_S):
            self._try(self._announce)
        self._try(partial(self._registry.withdraw, self._card.id))

    def _introduce(self) -> None:
        with suppress(OSError):  # a file that is gone has been introduced by an earlier child
            created = int(self._model.path.stat().st_mtime)
            self._registry.add_model(ServedModel(self._card.model, self._card.n_ctx, created))
        self._announce()
        last_words.forget(self._redis, self._card.model)

    def _announce(self) -> None:
        self._registry.announce(replace(self._card, busy=self._engine.num_running, work=self._work.counts))

    @staticmethod
    def _try(action: Callable[[], None]) -> None:
        try:
            action()
        except redis.RedisError as error:
            logger.warning("could not register: %s", error)
        except Exception:
            # A heart that stops would take a child that works out of the list.
            logger.exception("could not register")
