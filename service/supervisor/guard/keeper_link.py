"""The supervisor's end of the pipe to :mod:`service.supervisor.guard.keeper`."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

#: Seconds between two starts of a keeper.
PAUSE_S = 1.0


class KeeperLink:
    """Starts a keeper; it inherits the descriptor ``lock``, so the state stays locked until it is done."""

    def __init__(self, lock: int) -> None:
        self.lock = lock
        self._groups: set[int] = set()
        self._start()

    @property
    def is_alive(self) -> bool:
        """Whether the keeper runs."""
        return self._keeper.poll() is None

    def guard(self, group: int) -> None:
        """Have the keeper end ``group`` if this process ends without :meth:`release`."""
        self._groups.add(group)
        self._send(f"+{group}\n")

    def release(self, group: int) -> None:
        """Tell the keeper that ``group`` has ended."""
        self._groups.discard(group)
        self._send(f"-{group}\n")

    def revive(self) -> bool:
        """Start another keeper if this one was killed a while ago, and tell it all groups; whether it did."""
        if self.is_alive or time.monotonic() < self._started + PAUSE_S:
            return False
        self._close_pipe()
        self._start()
        for group in self._groups:
            self._send(f"+{group}\n")
        return True

    def close(self) -> None:
        """End the keeper."""
        self._close_pipe()
        self._keeper.wait()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            pass_fds=[self.lock],
        )

    def _send(self, line: str) -> None:
        if self._keeper.stdin is not None and self.is_alive:
            with suppress(BrokenPipeError):  # it was killed this moment: the next one is told
                self._keeper.stdin.write(line)

    def _close_pipe(self) -> None:
        if self._keeper.stdin is not None:
            with suppress(BrokenPipeError):
                self._keeper.stdin.close()
