"""A Celery pool of forked children that each run several tasks at once, in threads of one process.

So a child's tasks can share one engine, and when a child dies, the other children go on. This pool is built
on Celery's prefork pool, which still handles dead children, redelivery and statistics. Celery's pool assumes
one task per child; the methods here replace what depends on that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery.exceptions import ImproperlyConfigured
from redis import RedisError

from tasks.contract.prefixes import prefixes_in
from tasks.engine.costs.table import CostTable
from tasks.worker.pool.affinity import Affinity
from tasks.worker.pool.guarded_pool import GuardedPool, GuardedTaskPool
from tasks.worker.pool.placement import Crew, advised
from tasks.worker.pool.slot_worker import SlotWorker
from tasks.worker.pool.taken_slots import Slots

logger = logging.getLogger(__name__)


class SlotPool(GuardedPool):
    """The parent's side: gives a job to the child that has its conversation, or where it costs least."""

    def __init__(
        self, processes: int, *args: Any, crew: Crew, costs: Callable[[], CostTable | None], **kwargs: Any
    ) -> None:
        """Start the children.

        Args:
            processes: number of children.
            args: Celery's.
            crew: what the children share.
            costs: reads what a step costs, if that is known.
            kwargs: Celery's and :class:`GuardedPool`'s.
        """
        # Set before Celery's __init__, which starts the children.
        self._crew, self._costs, slots = crew, costs, crew.slots
        self.Worker = partial(SlotWorker, slots=slots)
        super().__init__(processes, *args, **kwargs)
        self.slots = slots
        self._busy_workers = Slots(slots)
        self._mark_worker_as_available = self._busy_workers.release
        self._affinity = Affinity()

    def apply_async(self, *args: Any, soft_timeout: Any = None, timeout: Any = None, **kwargs: Any) -> Any:
        """Send a job. Time limits are dropped: Celery would end the child and everything that it runs."""
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
            # Celery goes round all pipes that can be written, including full children's. It would fill one
            # child before the next.
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

    def _has_work(self, pipe: int) -> bool:
        return self._busy_workers.free(pipe) < self.slots

    def _index(self, pipe: int) -> int:
        child = self._fileno_to_inq.get(pipe)
        return int(child.index) if child else 0

    def _event_process_exit(self, hub: Any, proc: Any) -> None:
        self._affinity.forget(proc.inqW_fd)
        super()._event_process_exit(hub, proc)

    def flush(self) -> None:
        """When the consumer stops or reconnects: put back the jobs that no child has, keep the others.

        Celery drops all jobs that the children have not acknowledged, since its broker would deliver them
        again. Here the broker does not, and a job that was sent takes one of its child's slots.
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
        """Each child's process id, slots, and free slots, which are 0 while it starts."""
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
    """The digests that the API sent with the job's request; none for a job that is no request."""
    request = getattr(job._callback, "__self__", None)
    return prefixes_in(getattr(getattr(request, "message", None), "headers", None) or {})


def _put_back(job: Any) -> None:
    message = job._callback.__self__.message
    # If Redis is away, the message goes back when its lease runs out.
    message.reject_log_error(logger, (RedisError, OSError), requeue=True)


class TaskPool(GuardedTaskPool):
    """Celery's pool of ``workers`` children with ``slots`` threads; ``--concurrency`` counts all slots."""

    limit: int
    _pool: Any

    #: Celery's semaphore counts one task a child. When a child dies, it would leak the other tasks' permits.
    uses_semaphore = False

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
        total, self.limit = self.limit, self.limit // slots
        try:
            super().on_start()
        finally:
            self.limit = total
        self.grow = self.shrink = self._refuse_resize

    def pool_class(self) -> Callable[..., GuardedPool]:
        """The pool whose children have slots."""
        shape = self.app.settings.shape
        crew = Crew(shape.slots, shape.workers * shape.threads)
        return partial(SlotPool, crew=crew, costs=self._costs)

    def on_stop(self) -> None:
        """Let running tasks finish, and end the children."""
        pool: SlotPool | None = self._pool
        # Celery's own on_stop wakes only every half second, to fire timers for running tasks.
        if pool is None or pool._cache:
            super().on_stop()
        else:
            pool.close()
            pool.join()
            self._pool = None

    def _costs(self) -> CostTable | None:
        """What a step costs, as soon as a child has noted it."""
        return CostTable.from_json(self.app.step_costs.read())

    @property
    def num_processes(self) -> int:
        """How many tasks run at once; Celery holds as many messages."""
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
