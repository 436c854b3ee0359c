"""Shows in the terminal what the parts write to their logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Follower:
    """Passes each new whole line of some logs to ``show``, with the log's name."""

    def __init__(self, logs: list[Path], show: Callable[[str, str], None]) -> None:
        self._offsets = {log: log.stat().st_size if log.exists() else 0 for log in logs}
        self._show = show

    def poll(self) -> None:
        """Show the lines that came since the last call."""
        for log, offset in self._offsets.items():
            if log.exists():
                self._offsets[log] += self._show_from(log, offset)

    def _show_from(self, log: Path, offset: int) -> int:
        with log.open("rb") as file:
            file.seek(offset)
            whole = file.read().rpartition(b"\n")[0]
        for line in whole.splitlines():
            self._show(log.stem, line.decode(errors="replace"))
        return len(whole) + 1 if whole else 0
