"""One process of a cluster: the real command in its own process group, which a test kills or pauses by id."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from service.supervisor.guard.keeper_link import KeeperLink


@dataclass
class Process:
    """A command that can be started, stopped in many ways, and started again.

    Attributes:
        log: file that the output of all its starts is appended to.
        keeper: ends it if the tests themselves are killed.
        cwd: folder that it starts in; Python imports from there first. Default: this process's folder.
        num_starts: how often it was started.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    keeper: KeeperLink
    cwd: Path | None = None
    num_starts: int = 0
    _popen: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.is_running:
            return
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.keeper.guard(self._popen.pid)
        self.num_starts += 1

    @property
    def pid(self) -> int:
        """The process's id; its group has the same."""
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        """Whether the process itself lives, paused or not."""
        return self._popen is not None and self._popen.poll() is None

    def children(self) -> list[int]:
        """Ids of its children that live."""
        try:
            forked = psutil.Process(self.pid).children()
            return [child.pid for child in forked if child.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL to the whole group, as when a host loses its power."""
        self.signal_group(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()
            self.keeper.release(self.pid)

    def kill_alone(self) -> None:
        """SIGKILL to the process only; its children lose their parent."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """SIGSTOP to the whole group."""
        self.signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to the whole group."""
        self.signal_group(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM to the process: an orderly end."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout: float = 60) -> int:
        """Wait until it ends, and return the exit code."""
        assert self._popen is not None
        return self._popen.wait(timeout=timeout)

    def signal_group(self, number: signal.Signals) -> None:
        """Send signal ``number`` to every process left in the group."""
        if self._popen is None:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def tail(self, count: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def memory_kb(pid: int) -> int:
    """Memory of a process in kB (PSS: shared pages count in part); 0 when the process is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
