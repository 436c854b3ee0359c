"""The child's side of the pool: runs several tasks at once, in threads of one process."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any

from billiard.common import TERM_SIGNAL
from billiard.einfo import ExceptionInfo
from billiard.pool import ACK, DEATH, EX_FAILURE, EX_OK, READY, TASK, MaybeEncodingError
from celery.concurrency import asynpool


class SlotWorker(asynpool.Worker):  # type: ignore[misc]
    """The child's side: takes jobs off its pipe and runs them in ``slots`` threads."""

    def __init__(self, *args: Any, slots: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._slots = slots

    def workloop(self, debug: Any = None, now: Any = monotonic, pid: int | None = None) -> None:
        """Run jobs until told to exit, then let the running ones finish.

        Celery's loop waits at its end, up to 30 s, until the parent has counted as many results as this
        child completed. That count assumes one task at a time. The wait is not needed, because messages in
        the pipe outlive the child.
        """
        # A pipe has no lock, and a message takes more than one write.
        self._pipe_lock = threading.Lock()
        slots = ThreadPoolExecutor(self._slots, thread_name_prefix="slot")
        try:
            while True:
                self._take_job(slots, pid or os.getpid())
        finally:
            slots.shutdown(wait=True)

    def _do_exit(self, pid: int, exitcode: int | None, exc: BaseException | None = None) -> None:
        """Report the exit and end. Celery waits a second more, but messages in the pipe outlive the child."""
        code = (EX_FAILURE if exc else EX_OK) if exitcode is None else exitcode
        try:
            if self.on_exit is not None:
                self.on_exit(pid, code)
            signal.pthread_sigmask(signal.SIG_BLOCK, {TERM_SIGNAL})  # the signal must not cut the message
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
        except Exception as exc:  # a result that can't be pickled fails the task
            self._put((READY, (job, i, (False, _not_sent(exc, result[1])), self.inqW_fd)))

    def _put(self, message: Any) -> None:
        with self._pipe_lock:
            self.outq.put(message)


def _not_sent(exc: Exception, value: Any) -> ExceptionInfo:
    return ExceptionInfo((MaybeEncodingError, MaybeEncodingError(exc, value), exc.__traceback__))
