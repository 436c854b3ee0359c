"""How a worker stops: it drains for a bounded time."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any

from celery import bootsteps, platforms, signals
from celery.concurrency.prefork import TaskPool as ForkingPool
from celery.worker import state
from redis import RedisError

from tasks.contract.exit_status import HOPELESS
from tasks.worker.ending.give_up import say_last_words
from tasks.worker.lease_renewal import held_requests
from tasks.worker.pool.children import child_pids, wake_event_loop

logger = logging.getLogger(__name__)

#: The signal that tells a child to deliver what it has and hand back its requests, and its seconds for that.
HAND_BACK = signal.SIGUSR2
HAND_BACK_S = 5.0


class Drain(bootsteps.StartStopStep):  # type: ignore[misc]
    """SIGTERM, SIGINT or SIGQUIT: take no more requests and let the running ones finish, for a bounded time.

    After ``drain_timeout`` seconds, or at a second signal, the other requests go back to the head of the
    queue. Either way the worker ends with status 0. If no child can become ready, it ends at once, with
    ``HOPELESS``.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._worker = worker
        self._deadline: threading.Timer | None = None
        self._giving_up = threading.Lock()

    def start(self, worker: Any) -> None:
        """Take over the signals from Celery."""
        for name in ("SIGTERM", "SIGINT", "SIGQUIT"):
            platforms.signals[name] = self._on_signal
        # Celery would end with a traceback if a child is dead already; the pool counts deaths.
        worker.pool.did_start_ok = lambda: True
        worker.pool.give_up = self.give_up
        threading.Thread(target=self._listen, name="refusal", daemon=True).start()

    def stop(self, worker: Any) -> None:
        """Do nothing: the pool stops after this, and the time runs on until it has."""

    def close(self, worker: Any) -> None:
        """Begin to drain: the worker is stopping, perhaps by remote control."""
        self._begin()

    def give_up(self, text: str) -> None:
        """End because no child can become ready: say so, and put the worker's requests back."""
        with self._giving_up:
            if self._deadline is not None:
                return
            say_last_words(self._worker.app.settings, self._worker.hostname, text)
            state.should_stop = HOPELESS
            self._begin(0.0)

    def _listen(self) -> None:
        self.give_up(self._worker.app.refusal.wait())
        _wake_loop()

    def _on_signal(self, signum: int, frame: Any) -> None:
        if self._deadline is not None:
            self._end_now()
            return
        name = signal.Signals(signum).name
        signals.worker_shutting_down.send(sender=self._worker.hostname, sig=name, how="Warm", exitcode=0)
        state.should_stop = platforms.EX_OK
        # Begin here, not when the event loop has ended: the solo pool would finish its task first.
        self._begin()
        _wake_loop()

    def _begin(self, timeout: float | None = None) -> None:
        if self._deadline is not None:
            return
        # On a stop by remote control, Celery sets this only at the end, but putting back depends on it.
        if state.should_stop is None:
            state.should_stop = platforms.EX_OK
        timeout = self._worker.app.settings.drain_timeout if timeout is None else timeout
        logger.info("Stopping; %d requests have %g s to finish", len(held_requests()), timeout)
        self._deadline = _later(timeout, self._hand_back)

    def _hand_back(self) -> None:
        """Have running requests deliver what they generated, and put them back at the head of the queue."""
        held = held_requests()
        if held:
            logger.warning("%d requests did not finish in time and are put back", len(held))
        if held and isinstance(self._worker.pool, ForkingPool):
            _signal_children(self._worker.pool, HAND_BACK)
            _later(HAND_BACK_S, self._end_now)
        else:
            self._end_now()

    def _end_now(self) -> None:
        """End running requests, which puts them back; undelivered tokens will be generated again."""
        held = held_requests()
        if not held:
            return
        if isinstance(self._worker.pool, ForkingPool):
            # The lost children's requests are put back by Celery (task_reject_on_worker_lost).
            _signal_children(self._worker.pool, signal.SIGKILL)
        else:
            # Threads can't be ended, so end the process.
            _put_back(held)
            os._exit(state.should_stop or platforms.EX_OK)


def _wake_loop() -> None:
    """Have the event loop check now whether to stop; by itself it checks a second later."""
    # From a thread, since a signal may have interrupted the loop.
    _later(0, wake_event_loop)


def _later(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer


def _signal_children(pool: Any, signum: int) -> None:
    for pid in child_pids(pool):
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def _put_back(requests: Iterable[Any]) -> None:
    for request in requests:
        request.message.reject_log_error(logger, (RedisError,), requeue=True)
