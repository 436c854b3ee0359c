"""Puts a load on the service of one case and measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from service.bench.cases import Case
from service.client.load_run import Load, Summary, run_load


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a load on a case; ``memory_mib`` is the proportional set size of all its processes."""

    case: Case
    concurrency: int
    summary: Summary
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Service:
    """A running service of one case."""

    case: Case
    url: str
    model: str

    def measure(self, load: Load, on_done: Callable[[], None] = lambda: None) -> Result:
        """Put ``load`` on it; call ``on_done`` after each request. Raises ``ClientError`` if all fail."""
        summary = run_load(self.url, self.model, load, on_done)
        return Result(self.case, load.concurrency, summary, _memory_mib())


def _memory_mib() -> float:
    """Memory of all processes below this process; they belong to the service."""
    return sum(map(_own_share, psutil.Process().children(recursive=True))) / 2**20


def _own_share(process: psutil.Process) -> float:
    """Bytes of a process; if the system tells, shared pages are split among the processes that share them."""
    try:
        told = process.memory_full_info()
    except psutil.Error:
        return 0.0
    return float(getattr(told, "pss", told.uss))
