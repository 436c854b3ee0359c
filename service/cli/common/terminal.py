"""Helpers for the terminal that commands share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console
    from rich.progress import Progress


def console(*, stderr: bool = False) -> Console:
    """A rich console; rich is imported late because its import takes a tenth of a second."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar on standard error until the end; it refreshes seldom, to leave the cores to the service."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), refresh_per_second=2, transient=True) as bar:
        yield bar


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Let SIGTERM run the ``finally`` blocks like Ctrl-C does; the exit code is 143."""
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(signum: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signum)
