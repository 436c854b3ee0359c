"""The one task, and the one engine of each process that runs it."""

from __future__ import annotations

import gc
import logging
import os
import signal
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from celery import current_app, shared_task, signals
from celery.concurrency import get_implementation
from celery.concurrency.prefork import TaskPool as Prefork
from celery.exceptions import Reject

from tasks.contract.exit_status import HOPELESS
from tasks.contract.messages import TASK_NAME
from tasks.engine.costs.threads import CorePool
from tasks.engine.errors import ModelError
from tasks.engine.kernels.proof import Shape, proven
from tasks.engine.llama.kernel_sets import KernelSet
from tasks.engine.llama.model import Model
from tasks.engine.tokens.chat_template import chosen_template
from tasks.memory_need import HeaderFacts, Need
from tasks.settings import WorkerSettings
from tasks.telemetry import logs
from tasks.worker.child import HandedBackError, Share, WorkerChild
from tasks.worker.consumer.cancellable import CancellableRequest
from tasks.worker.drain import HAND_BACK
from tasks.worker.ending.diagnosis import Circumstances, explain_refusal
from tasks.worker.ending.give_up import refuse_to_start
from tasks.worker.ending.model_file import ModelFile
from tasks.worker.pool.children import child_index
from tasks.worker.pool.slot_pool import TaskPool

logger = logging.getLogger(__name__)


class ProcessEngine:
    """This process's :class:`WorkerChild`, made when it is first needed.

    A parent that forks loads only the weights; each child makes its context over them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kernels: KernelSet | None = None
        self._model: Model | None = None
        self._chat_template: str | None = None
        self._child: WorkerChild | None = None
        self._worker = "worker"
        self._slots, self._forks = 1, True
        self._cores = CorePool(1, 1)
        self._parent = os.getpid()

    def prepare(self, worker: Any) -> None:
        """In the worker's parent: choose slots, kernels and cores, and load the shared weights.

        With a GPU, nothing may touch the device before the fork, so each child loads the weights itself.
        Raises :class:`~tasks.engine.errors.ModelError` when the model can't be computed here.
        """
        settings: WorkerSettings = worker.app.settings
        pool, shape = get_implementation(worker.pool_cls), settings.shape
        self._worker, self._parent = worker.hostname, os.getpid()
        self._forks = issubclass(pool, Prefork)
        if issubclass(pool, TaskPool):
            self._slots = shape.slots
        elif self._forks:
            self._slots = 1
        else:
            self._slots = worker.concurrency
        workers = worker.concurrency // self._slots
        worker.app.model_file = ModelFile.at(_model_path(settings))
        self._chat_template = chosen_template(settings.chat_template)
        self._kernels = self._proven(settings, workers)
        self._cores = CorePool(workers, shape.workers * shape.threads, self._kernels.threads)
        if settings.gpu_layers == 0:
            self._model = self._load(settings)
            self._model.read_vocabulary()
            worker.app.memory_need = Need.of(HeaderFacts.of(self._model.describe()), settings)
        # Keep the children's garbage collectors off existing objects: they would copy shared pages.
        gc.collect()
        gc.freeze()

    def start(self) -> WorkerChild:
        """The child, made on the first call.

        Raises:
            ModelError: no child can ever start.
            Exception: whatever else kept this one from starting.
        """
        with self._lock:
            if self._child is None:
                settings, share = current_app.settings, self._share()
                share.on_stage("loading the model")
                model = self._model or self._load(settings)
                child = WorkerChild(settings, model, share)
                child.start()
                self._model, self._child = model, child
            return self._child

    def _share(self) -> Share:
        index = child_index()
        tally = current_app.tallies.row(index)
        if tally.counts(["starts"])["starts"]:
            tally.add("restarts")
        tally.add("starts")
        threads, step_costs = self._cores.member(index), current_app.step_costs
        return Share(
            worker=self._worker,
            index=index,
            slots=self._slots,
            threads=threads,
            tally=tally,
            step_costs=step_costs,
            on_stage=partial(current_app.stages.note, index),
            on_beat=partial(current_app.pulses.beat, index),
            chat_template=self._chat_template,
            parents_troubles=lambda: current_app.parents_troubles.read().decode(errors="replace"),
        )

    @property
    def is_child(self) -> bool:
        """Whether this process is a child of the worker's main process; some pools have no children."""
        return os.getpid() != self._parent

    def hand_back(self) -> None:
        """Have the child's requests continued elsewhere."""
        if self._child is not None:
            self._child.hand_back()

    def stop(self) -> None:
        """Withdraw the child, if there is one."""
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None

    def _proven(self, settings: WorkerSettings, workers: int) -> KernelSet:
        """The kernels proven to compute this model here, with as many threads as a child may get."""
        shape = settings.shape
        threads = CorePool(workers, shape.workers * shape.threads).threads_of(1)
        return proven(
            Shape(
                model=_model_path(settings),
                gpu_layers=settings.gpu_layers,
                slots=self._slots,
                n_ctx=settings.n_ctx,
                n_batch=settings.n_batch,
                threads=threads,
                forks=self._forks,
            )
        ).chosen

    def _load(self, settings: WorkerSettings) -> Model:
        return Model(_model_path(settings), settings.gpu_layers, self._kernels)


def _model_path(settings: WorkerSettings) -> Path:
    if settings.model is None:
        raise ModelError("no model is set; give --model or INFERENCE_MODEL")
    return settings.model


_engine = ProcessEngine()


@shared_task(name=TASK_NAME, Request=CancellableRequest)
def generate(request_id: str = "", *_: Any, **__: Any) -> None:
    """Generate the answer to a request; its tokens go to the request's log.

    Arguments that a newer release may add are dropped. A message without an id is kept for people.
    """
    if not isinstance(request_id, str) or not request_id:
        raise Reject(f"this is no request's id: {request_id!r:.80}", requeue=False)
    try:
        with logs.bound(id=request_id):
            _started().run(request_id)
    except HandedBackError as error:
        raise Reject(error, requeue=True) from None


def _started() -> WorkerChild:
    try:
        return _engine.start()
    except Exception as error:
        _explain_failed_start(error)
        raise Reject(error, requeue=True) from None


@signals.worker_init.connect(weak=False)
def _on_worker_init(sender: Any, **_: Any) -> None:
    logs.configure(sender.app.settings)  # Celery does this later, but the kernels' proof logs already
    try:
        _engine.prepare(sender)
    except ModelError as error:
        refuse_to_start(sender, explain_refusal(str(error), Circumstances.of(sender.app)))
    except Exception as error:
        # Celery would only log the error, and go on with a worker that is not prepared.
        logger.exception("this worker can't start")
        refuse_to_start(sender, f"The worker can't start: {error!r}; its log says where.")


@signals.worker_process_init.connect(weak=False)
def _on_child_init(**_: Any) -> None:
    # In a thread: the code that a signal handler interrupts may hold the locks that this needs.
    signal.signal(HAND_BACK, lambda *_: Thread(target=_engine.hand_back, daemon=True).start())
    try:
        _engine.start()
    except Exception as error:
        _explain_failed_start(error)
        # Celery would go on with a child that can run no task. The solo pool has no children: its process
        # reads the reason itself, as soon as it has started.
        if _engine.is_child:
            raise SystemExit(HOPELESS if isinstance(error, ModelError) else 1) from None


def _explain_failed_start(error: Exception) -> None:
    """End the worker and say why, unless this is a child whose replacement may do better.

    If none does, the worker gives up with what the last of them noted.
    """
    if isinstance(error, ModelError):
        _refuse(str(error))
        return
    logger.error("this child can't start", exc_info=error)
    stages, place = current_app.stages, child_index()
    failure = f"{stages.read(place)} ({error!r})"
    if _engine.is_child:
        stages.note(place, failure)
    else:
        _refuse(f"it failed while {failure}; its log says where")


def _refuse(reason: str) -> None:
    current_app.refusal.say(explain_refusal(reason, Circumstances.of(current_app)))


@signals.worker_process_shutdown.connect(weak=False)
def _on_child_shutdown(**_: Any) -> None:
    _engine.stop()
