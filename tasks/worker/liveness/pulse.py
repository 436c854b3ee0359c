"""A child says that it gets on: it counts, in memory that its parent shares."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

from tasks.telemetry.tally import MAX_ROWS

#: Seconds between two beats.
INTERVAL_S = 0.5
#: Bytes of a number; a child has two: its process id, and its beats.
_SIZE = 8


class Pulses:
    """The beats of each child, by the child's number. Make it before forking."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, MAX_ROWS * 2 * _SIZE)).cast("Q")

    def beat(self, index: int) -> None:
        """Count a beat of this process, which is child ``index``."""
        self._cells[2 * index] = os.getpid()
        self._cells[2 * index + 1] += 1

    def read(self, index: int, pid: int) -> int | None:
        """How often child ``index`` has beaten; ``None`` if process ``pid`` has not begun to beat there."""
        return self._cells[2 * index + 1] if self._cells[2 * index] == pid else None


class Pulse:
    """A thread that beats for as long as its process gets on."""

    def __init__(self, beat: Callable[[], None], gets_on: Callable[[], bool]) -> None:
        """``gets_on`` says whether there is either nothing to do, or progress."""
        self._beat, self._gets_on, self._closing = beat, gets_on, Flag()
        self._thread = Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Beat once, and go on until :meth:`close`."""
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """Stop beating."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(INTERVAL_S):
            if self._gets_on():
                self._beat()
