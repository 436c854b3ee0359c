"""The supervisor's end of the pipe to :mod:`service.supervisor.keeper`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class KeeperLink:
    """Starts a keeper; it inherits the descriptor ``lock``, so the state stays locked until it is done."""

    def __init__(self, lock: int) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            pass_fds=[lock],
        )

    def guard(self, group: int) -> None:
        """Have the keeper end ``group`` if this process ends without :meth:`release`."""
        self._send(f"+{group}\n")

    def release(self, group: int) -> None:
        """Tell the keeper that ``group`` has ended."""
        self._send(f"-{group}\n")

    def close(self) -> None:
        """End the keeper."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()

    def _send(self, line: str) -> None:
        if self._keeper.stdin is not None and self._keeper.poll() is None:
            self._keeper.stdin.write(line)
