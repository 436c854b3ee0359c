"""Sleeps until a signal, a child's end or a deadline, without threads, and misses no signal."""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType, TracebackType
from typing import Any, Self

#: Signals that ask a service to end: Ctrl-C, ``kill``, and a closed terminal.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Notes signals while the context is open.

    The signals in ``stopping`` are counted in :attr:`num_stops` instead of their usual effect.
    """

    def __init__(self, stopping: tuple[signal.Signals, ...] = ()) -> None:
        self.num_stops = 0
        self._stopping = stopping
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *self._stopping):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout_s: float) -> None:
        """Return at the next signal, or after ``timeout_s`` seconds."""
        if select.select([self._reader], [], [], max(0.0, timeout_s))[0]:
            self._reader.recv(4096)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.num_stops += number in self._stopping
