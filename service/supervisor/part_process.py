"""One running part."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from service.supervisor.guard import tether
from service.supervisor.programs.part import Part
from tasks.contract.exit_status import HOPELESS

if TYPE_CHECKING:
    from service.supervisor.guard.keeper_link import KeeperLink
    from service.supervisor.signals import Signals


#: What a part is started by: it ends with this process, whatever kills that.
_TETHER = (sys.executable, "-I", "-S", str(Path(tether.__file__)))


class Child:
    """A part's process and, as its process group, everything that the part starts itself.

    It ends when the thread that made it ends, and it holds the state's lock as long as it lives.

    Raises:
        OSError: the program can't be started.
    """

    def __init__(self, part: Part, keeper: KeeperLink) -> None:
        self.part = part
        self._keeper = keeper
        self._is_gone = False
        self._started = time.monotonic()
        if not os.access(part.command[0], os.X_OK):
            raise FileNotFoundError(errno.ENOENT, "no such program", part.command[0])
        with _open_log(part.log) as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                (*_TETHER, str(os.getpid()), *part.command),
                env=dict(part.env),
                cwd=part.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[keeper.lock],
            )
        keeper.guard(self._process.pid)

    @property
    def is_running(self) -> bool:
        """Whether the part's main process is alive."""
        return self._process.poll() is None

    @property
    def is_hopeless(self) -> bool:
        """Whether its exit status says that a new process would end in the same way."""
        return self._process.poll() == HOPELESS

    def last_words(self) -> str:
        """Why the part can't go on: the message that it left, or else the end of its output."""
        told = self.part.last_words(time.monotonic() - self._started)
        return told or f"The {self.death()}:\n{self.last_lines()}"

    def death(self) -> str:
        """How an ended part ended, in words."""
        code = self._process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{self.part.name} ended ({how})"

    def last_lines(self, count: int = 15) -> str:
        """The last lines that this process wrote."""
        try:
            with self.part.log.open("rb") as log:
                log.seek(self._log_start)
                return b"\n".join(log.read().splitlines()[-count:]).decode(errors="replace")
        except OSError as error:
            return f"(no log: {error.strerror})"

    def stop(self, signals: Signals) -> None:
        """Send SIGTERM; send SIGKILL after ``stop_timeout_s``, or when the user asks a second time."""
        deadline = time.monotonic() + self.part.stop_timeout_s
        if self.is_running:
            self._process.terminate()
        while self.is_running and signals.num_stops < 2 and time.monotonic() < deadline:
            signals.wait(deadline - time.monotonic())
        self.kill()

    def kill(self) -> None:
        """End the whole group now, whether or not its leader lives; then forget it."""
        if self._is_gone:  # another process may have its number by now
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._is_gone = True
        self._keeper.release(self._process.pid)


def _open_log(path: Path) -> BinaryIO:
    """The part's log; nothing keeps it where the disk has no room for a new file, but the part runs."""
    try:
        return path.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")
