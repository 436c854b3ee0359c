"""Celery's prefork pool, but it gives up when children can't become ready, and watches the model's file.

Celery's own pool restarts a child that died at once, and for ever.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from billiard.pool import RUN
from celery.concurrency import asynpool, prefork
from kombu.asynchronous import get_event_loop

from tasks.worker.ending.crash_loop import MAX_DEATHS, CrashLoop
from tasks.worker.ending.diagnosis import Circumstances, Death, explain_deaths, explain_refusal
from tasks.worker.ending.model_file import ModelFile
from tasks.worker.liveness.silence import SilenceWatch

logger = logging.getLogger(__name__)

#: Seconds between two looks for the exit status of a child whose pipe has closed.
REAP_INTERVAL_S = 0.02
#: Most looks; after them there is only Celery's look every five seconds.
REAP_TRIES = 100
#: Seconds between two looks at the model's file.
LOOK_INTERVAL_S = 2.0


class GuardedPool(asynpool.AsynPool):  # type: ignore[misc]
    """The parent's side: pauses before it replaces children that die too early, and gives up in the end."""

    def __init__(
        self,
        processes: int,
        *args: Any,
        on_hopeless: Callable[[int, int, int], None],
        on_bus_error: Callable[[], None],
        looks: Mapping[Callable[[], None], float],
        **kwargs: Any,
    ) -> None:
        """Start the children.

        Args:
            processes: number of children.
            args: Celery's.
            on_hopeless: called with a child's place, its exit status, and how many died there in a row.
            on_bus_error: called when a child died by SIGBUS, before its requests are put back.
            looks: what is called again and again, and the seconds between two calls.
            kwargs: Celery's.
        """
        # Set before Celery's __init__, which starts the children.
        self._on_hopeless, self._on_bus_error, self._looks = on_hopeless, on_bus_error, looks
        self._crash_loop = CrashLoop()
        super().__init__(processes, *args, **kwargs)

    def on_process_alive(self, pid: int) -> None:
        """Note that a child is ready, that is, its engine has computed something."""
        super().on_process_alive(pid)
        child, _ = self._process_by_pid(pid)
        if child is not None:
            child.was_ready = True
            self._crash_loop.note_ready(child.index)

    def _join_exited_workers(self, shutdown: bool = False) -> list[int]:
        before = list(self._pool)
        if any(child.exitcode == -signal.SIGBUS for child in before):
            self._on_bus_error()
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
        """Start missing children, but none in a place that has to pause."""
        missing = set(range(self._processes)) - {child.index for child in self._pool}
        for place in sorted(missing):
            if self._state == RUN and self._crash_loop.may_start(place, monotonic()):
                self._create_worker_process(place)

    @property
    def timers(self) -> dict[Callable[[], None], float]:
        """What the event loop calls, and the seconds between two calls."""
        return {**super().timers, **self._looks}

    def working(self) -> dict[int, int]:
        """The number of each child that is ready and has work, by its process id."""
        ready = (child for child in self._pool if getattr(child, "was_ready", False))
        return {child.pid: child.index for child in ready if self._has_work(child.inqW_fd)}

    def _has_work(self, pipe: int) -> bool:
        return pipe in self._busy_workers

    def _event_process_exit(self, hub: Any, proc: Any) -> None:
        super()._event_process_exit(hub, proc)
        self._reap(hub, proc, REAP_TRIES)

    def _reap(self, hub: Any, proc: Any, tries: int) -> None:
        # A child's pipe closes before its exit status is known, and until then Celery takes it for alive.
        if proc in self._pool and tries:
            self.maintain_pool()
            hub.call_later(REAP_INTERVAL_S, self._reap, hub, proc, tries - 1)


class GuardedTaskPool(prefork.TaskPool):  # type: ignore[misc]
    """Celery's prefork pool, one task a child: ``--pool=processes``."""

    #: Ends the worker and says why; set by :class:`tasks.worker.drain.Drain`.
    give_up: Callable[[str], None]

    def on_start(self) -> None:
        """Start the children."""
        self._has_warned = False
        patience = 2 * self.app.settings.lease
        interval = min(1.0, patience / 8)
        self._silence = SilenceWatch(patience, interval)
        looks = {self._look: LOOK_INTERVAL_S, self._end_hung: interval}
        self.Pool = partial(
            self.pool_class(), on_hopeless=self._on_hopeless, on_bus_error=self._look, looks=looks
        )
        super().on_start()

    def pool_class(self) -> Callable[..., GuardedPool]:
        """What makes the pool that this object wraps."""
        return GuardedPool

    def _on_hopeless(self, place: int, status: int, num: int) -> None:
        """Give up: children in one place died too often before they were ready."""
        death = Death(status, self.app.stages.read(place))
        self.give_up(explain_deaths(num, death, Circumstances.of(self.app)))

    def _end_hung(self) -> None:
        """Kill the children that have work and don't get on: their requests go on elsewhere."""
        places = self._pool.working()
        read = self.app.pulses.read
        beats = {pid: num for pid, place in places.items() if (num := read(place, pid)) is not None}
        for pid in self._silence.look(beats, monotonic()):
            logger.error(
                "child %d has made no progress for %g s (twice the --lease) although it has work: it is "
                "killed, and its requests go on in another child",
                pid,
                2 * self.app.settings.lease,
            )
            self.app.tallies.row(places[pid]).add("hung")
            os.kill(pid, signal.SIGKILL)

    def _look(self) -> None:
        """Give up if the model's file was damaged; warn once if another file is in its place, or none."""
        file: ModelFile | None = self.app.model_file
        if file is not None and file.is_damaged():
            self.give_up(explain_refusal("the model's file was written to", Circumstances.of(self.app)))
        elif file is not None and not self._has_warned and (change := file.change()):
            self._has_warned = True
            logger.warning("%s Put it back, or restart the worker when the new one is in place.", change)
