"""A Celery pool of forked children that each run several tasks at once, in threads of one process.

So a child's tasks can share one engine, and what they share dies with that child only. Child death,
redelivery and statistics stay those of Celery's prefork pool, on which this is built; each method here
says which of its assumptions, "one task a child", it lifts.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any

from billiard.common import TERM_SIGNAL
from billiard.einfo import ExceptionInfo
from billiard.pool import ACK, DEATH, EX_FAILURE, EX_OK, READY, RUN, TASK, MaybeEncodingError
from celery.concurrency import asynpool, prefork
from celery.exceptions import ImproperlyConfigured
from kombu.asynchronous import get_event_loop
from redis import RedisError

from tasks.affinity import Affinity, prefixes_in
from tasks.crash_loop import MAX_DEATHS, CrashLoop
from tasks.diagnosis import Circumstances, Death, explain_deaths
from tasks.engine.cost_table import CostTable
from tasks.model_file import ModelFile
from tasks.placement import Crew, advised

logger = logging.getLogger(__name__)

#: Seconds between looks for a child whose exit was announced but which the system has not buried yet.
REAP_INTERVAL_S = 0.02
#: Looks at most; Celery's own, every five seconds, comes after them.
REAP_TRIES = 100
#: Seconds between two looks at the model's file.
LOOK_INTERVAL_S = 2.0


class SlotWorker(asynpool.Worker):  # type: ignore[misc]
    """The child's side: takes jobs off its pipe and runs them in ``slots`` threads."""

    def __init__(self, *args: Any, slots: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._slots = slots

    def workloop(self, debug: Any = None, now: Any = monotonic, pid: int | None = None) -> None:
        """Run jobs until told to exit, then let the running ones finish.

        Celery's loop ends by waiting, up to 30 s, until the parent has counted as many results as this
        child completed. That count assumes one task at a time, and what is in the pipe outlives the child.
        """
        # A pipe has no lock of its own, and a message takes more than one write.
        self._pipe_lock = threading.Lock()
        slots = ThreadPoolExecutor(self._slots, thread_name_prefix="slot")
        try:
            while True:
                self._take_job(slots, pid or os.getpid())
        finally:
            slots.shutdown(wait=True)

    def _do_exit(self, pid: int, exitcode: int | None, exc: BaseException | None = None) -> None:
        """Say goodbye and end. Celery's waits a second more; what is in the pipe outlives the child."""
        code = (EX_FAILURE if exc else EX_OK) if exitcode is None else exitcode
        try:
            if self.on_exit is not None:
                self.on_exit(pid, code)
            signal.pthread_sigmask(signal.SIG_BLOCK, {TERM_SIGNAL})  # it must not cut the message
            self._put((DEATH, (pid, code)))
        finally:
            os._exit(code)

    def _take_job(self, slots: ThreadPoolExecutor, pid: int) -> None:
        message = self.wait_for_job()  # raises SystemExit at the end
        if message is None:
            return
        kind, (job, i, function, args, kwargs) = message
        assert kind == TASK, kind  # noqa: S101 - nothing else is sent
        self._put((ACK, (job, i, monotonic(), pid, self.synqW_fd)))
        slots.submit(self._run, job, i, partial(function, *args, **kwargs))

    def _run(self, job: int, i: Any, call: partial[Any]) -> None:
        try:
            result = (True, self.prepare_result(call()))
        except BaseException:  # also SystemExit: it ends the task, never the child
            result = (False, ExceptionInfo())
        try:
            self._put((READY, (job, i, result, self.inqW_fd)))
        except Exception as exc:  # what can't be pickled is a failure of the task
            self._put((READY, (job, i, (False, _not_sent(exc, result[1])), self.inqW_fd)))

    def _put(self, message: Any) -> None:
        with self._pipe_lock:
            self.outq.put(message)


def _not_sent(exc: Exception, value: Any) -> ExceptionInfo:
    return ExceptionInfo((MaybeEncodingError, MaybeEncodingError(exc, value), exc.__traceback__))


class Slots:
    """How many jobs each child has, by its pipe; stands in for Celery's set of busy children.

    A child is *in* it, that is busy, when all its slots are taken.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._taken: Counter[int] = Counter()

    def add(self, pipe: int) -> None:
        """A job was sent."""
        self._taken[pipe] += 1

    def release(self, pipe: int) -> None:
        """A job has ended."""
        self._taken[pipe] = max(0, self._taken[pipe] - 1)

    def discard(self, pipe: int) -> None:
        """The child is gone, with all its jobs."""
        del self._taken[pipe]

    def intersection_update(self, pipes: Collection[int]) -> None:
        """Forget the other children."""
        self._taken = Counter({pipe: num for pipe, num in self._taken.items() if pipe in pipes})

    def recount(self, pipes: Iterable[int]) -> None:
        """Take the pipes of all jobs, one entry each, for the truth."""
        self._taken = Counter(pipes)

    def free(self, pipe: int) -> int:
        """Slots that are not taken."""
        return self._slots - self._taken[pipe]

    def __contains__(self, pipe: int) -> bool:
        return self.free(pipe) <= 0

    def __len__(self) -> int:
        return sum(num >= self._slots for num in self._taken.values())


class SlotPool(asynpool.AsynPool):  # type: ignore[misc]
    """The parent's side: gives each job to the child that has its conversation, or where it costs least."""

    def __init__(
        self,
        processes: int,
        *args: Any,
        crew: Crew,
        costs: Callable[[], CostTable | None],
        on_hopeless: Callable[[int, int, int], None],
        look: Callable[[], None],
        **kwargs: Any,
    ) -> None:
        """Start the children.

        Args:
            processes: how many.
            args: Celery's.
            crew: what the children share.
            costs: what a step costs, if that is known.
            on_hopeless: hears of a child's place, its exit status, and how many died there in a row.
            look: called every other second.
            kwargs: Celery's.
        """
        # Before Celery's part, which starts the children.
        self._crew, self._costs, slots = crew, costs, crew.slots
        self._on_hopeless, self._look = on_hopeless, look
        self._crash_loop = CrashLoop()
        self.Worker = partial(SlotWorker, slots=slots)
        super().__init__(processes, *args, **kwargs)
        self.slots = slots
        self._busy_workers = Slots(slots)
        self._mark_worker_as_available = self._busy_workers.release
        self._affinity = Affinity()

    def apply_async(self, *args: Any, soft_timeout: Any = None, timeout: Any = None, **kwargs: Any) -> Any:
        """Send a job. Time limits are dropped: Celery's would end the child and all that it runs."""
        return super().apply_async(*args, **kwargs)

    def terminate_job(self, pid: int, sig: Any = None) -> None:
        """Refuse: the signal would end everything that the child runs."""
        logger.warning(
            "Not ending child %s, which runs other requests too. Cancel the request through the API "
            "(DELETE /v1/requests/ID, or close its connection), which frees its slot within a step.",
            pid,
        )

    def _create_write_handlers(self, hub: Any, **kwargs: Any) -> None:
        super()._create_write_handlers(hub, **kwargs)
        write_to = hub.consolidate_callback

        def write(ready: list[int]) -> None:
            # Celery goes round the pipes that can be written, which are all, whoever has room: it filled
            # one child before the next.
            for _ in range(max(1, len(self.outbound_buffer))):
                write_to([self._choose(ready)])

        hub.consolidate_callback = write

    def _choose(self, pipes: Iterable[int]) -> int:
        """The pipe of the child that gets the next job, see :meth:`Affinity.choose`."""
        children = sorted((self._index(pipe), pipe) for pipe in pipes)
        free = {pipe: self._busy_workers.free(pipe) for _, pipe in children}
        names = _prefixes(self.outbound_buffer[0]) if self.outbound_buffer else []
        taken = {pipe: self.slots - num for pipe, num in free.items()}
        chosen = self._affinity.choose(free, names, advised(taken, self._crew, self._costs()))
        self._affinity.note(chosen, names)
        return chosen

    def _index(self, pipe: int) -> int:
        child = self._fileno_to_inq.get(pipe)
        return int(child.index) if child else 0

    def on_process_alive(self, pid: int) -> None:
        """A child is ready, that is, its engine has computed something."""
        super().on_process_alive(pid)
        child, _ = self._process_by_pid(pid)
        if child is not None:
            child.was_ready = True
            self._crash_loop.note_ready(child.index)

    def _join_exited_workers(self, shutdown: bool = False) -> list[int]:
        before = list(self._pool)
        exited: list[int] = super()._join_exited_workers(shutdown)
        for child in before:
            if child not in self._pool:
                self._note_death(child)
        return exited

    def _note_death(self, child: Any) -> None:
        if self._state != RUN or getattr(child, "was_ready", False):
            return
        pause = self._crash_loop.note_death(child.index, monotonic())
        if pause is None:
            self._on_hopeless(child.index, child.exitcode, MAX_DEATHS)
        elif (hub := get_event_loop()) is not None:
            hub.call_later(pause, self.maintain_pool)

    def _repopulate_pool(self, exitcodes: list[int]) -> None:
        """Start the children that are missing, but none whose place has to pause."""
        missing = set(range(self._processes)) - {child.index for child in self._pool}
        for place in sorted(missing):
            if self._state == RUN and self._crash_loop.may_start(place, monotonic()):
                self._create_worker_process(place)

    @property
    def timers(self) -> dict[Callable[[], None], float]:
        """What the event loop calls every so many seconds."""
        return {**super().timers, self._look: LOOK_INTERVAL_S}

    def _event_process_exit(self, hub: Any, proc: Any) -> None:
        self._affinity.forget(proc.inqW_fd)
        super()._event_process_exit(hub, proc)
        self._reap(hub, proc, REAP_TRIES)

    def _reap(self, hub: Any, proc: Any, tries: int) -> None:
        # Its pipe closes before its exit status can be had, and without that Celery takes it for alive.
        if proc in self._pool and tries:
            self.maintain_pool()
            hub.call_later(REAP_INTERVAL_S, self._reap, hub, proc, tries - 1)

    def flush(self) -> None:
        """When the consumer stops, for good or to reconnect: put back what no child has, keep the rest.

        Celery drops all that the children have not acknowledged, since the broker would deliver it again.
        Here it does not, and what was sent takes one of its child's slots.
        """
        pending = [job for job in self._cache.values() if not job._accepted]
        super().flush()
        for job in reversed(pending):
            if not job._write_to:
                _put_back(job)
            elif job._write_to._is_alive():
                self._cache[job._job] = job
        children = (job._write_to for job in self._cache.values() if job._write_to)
        self._busy_workers.recount(child.inqW_fd for child in children if child._is_alive())

    def children(self) -> list[dict[str, int]]:
        """Each child's process id, slots, and free slots: none while it starts."""
        return [
            {
                "pid": child.pid,
                "slots": self.slots,
                "free": self._busy_workers.free(child.inqW_fd) if self._is_up(child) else 0,
            }
            for child in sorted(self._pool, key=lambda child: int(child.index))
        ]

    def _is_up(self, child: Any) -> bool:
        return self._fileno_to_inq.get(child.inqW_fd) is child


def _prefixes(job: Any) -> list[str]:
    """What the API says of the job's prompt; nothing for a job that is no request."""
    request = getattr(job._callback, "__self__", None)
    return prefixes_in(getattr(getattr(request, "message", None), "headers", None) or {})


def _put_back(job: Any) -> None:
    message = job._callback.__self__.message
    # A Redis that is away leaves it to the lease to run out.
    message.reject_log_error(logger, (RedisError, OSError), requeue=True)


class TaskPool(prefork.TaskPool):  # type: ignore[misc]
    """Celery's pool of ``workers`` children with ``slots`` threads; ``--concurrency`` counts all slots."""

    limit: int
    _pool: Any

    #: Celery's semaphore counts one task a child, and would leak the others' permits when it dies.
    uses_semaphore = False
    #: Ends the worker and says why; set by :class:`tasks.steps.Drain`.
    give_up: Callable[[str], None]

    def on_start(self) -> None:
        """Start the children."""
        self._refuse_options()
        shape = self.app.settings.shape
        slots = shape.slots
        if self.limit % slots:
            raise ImproperlyConfigured(
                f"--concurrency {self.limit} is no multiple of the {slots} slots of a child; "
                f"set --workers and --slots instead"
            )
        crew = Crew(slots, shape.workers * shape.threads)
        self._has_warned = False
        self.Pool = partial(
            SlotPool, crew=crew, costs=self._costs, on_hopeless=self._on_hopeless, look=self._look
        )
        total, self.limit = self.limit, self.limit // slots
        try:
            super().on_start()
        finally:
            self.limit = total
        self.grow = self.shrink = self._refuse_resize

    def on_stop(self) -> None:
        """Let what runs finish, and end the children."""
        pool: SlotPool | None = self._pool
        # Celery's own wakes only every half second, to fire timers for what still runs.
        if pool is None or pool._cache:
            super().on_stop()
        else:
            pool.close()
            pool.join()
            self._pool = None

    def _on_hopeless(self, place: int, status: int, num: int) -> None:
        """Children in one place died too often before they were ready."""
        death = Death(status, self.app.stages.read(place))
        self.give_up(explain_deaths(num, death, Circumstances.of(self.app)))

    def _look(self) -> None:
        """Say once that the model's file is not what was loaded any more."""
        file: ModelFile | None = self.app.model_file
        if file is not None and not self._has_warned and (change := file.change()):
            self._has_warned = True
            logger.warning("%s Put it back, or restart the worker when the new one is in place.", change)

    def _costs(self) -> CostTable | None:
        """What a step costs, as soon as a child has noted it."""
        return CostTable.from_json(self.app.step_costs.read())

    @property
    def num_processes(self) -> int:
        """Tasks that run at once; Celery takes it for the number of messages to hold."""
        return self.limit

    def _refuse_options(self) -> None:
        if self.options.get("threads", True):
            raise ImproperlyConfigured("this pool needs Celery's event loop; on Windows use --pool=threads")
        for option in ("maxtasksperchild", "max_memory_per_child", "timeout", "soft_timeout"):
            if self.options.get(option):
                raise ImproperlyConfigured(
                    f"{option} would end children that run other requests too: unset it"
                )

    def _refuse_resize(self, n: int = 1) -> None:
        raise NotImplementedError("the pool has a fixed size: restart the worker with other --workers")

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        children = self._pool.children()
        return {**info, "children": children, "free": sum(child["free"] for child in children)}
