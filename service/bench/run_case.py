"""Start a service with one setting, put loads on it, and say what it did."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from service.bench.cases import Case
from service.cli.common.private import service_at
from service.client.api_client import served_model
from service.client.load_run import Load, Summary, run_load

#: Tokens of the answers that warm a service up, and how many of them at most.
WARM_TOKENS, WARM_REQUESTS = 4, 4


@dataclass(frozen=True, slots=True)
class Result:
    """What a load on a case came to; ``memory_mib`` is all its processes' proportional set size."""

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
        """Put ``load`` on it; ``on_done`` after each request. Raises ``ClientError`` if all fail."""
        summary = run_load(self.url, self.model, load, on_done)
        return Result(self.case, load.concurrency, summary, _memory_mib())


@contextmanager
def serving(case: Case) -> Iterator[Service]:
    """A warm service of ``case``, which is gone afterwards.

    Raises:
        click.ClickException: it can't start; the text says why.
        ClientError: it answers nothing.
    """
    with _environment(case.variables), service_at(None, tell=lambda _text: None) as url:
        service = Service(case, url, served_model(url))
        at_once = min(WARM_REQUESTS, case.workers * case.slots)
        run_load(url, service.model, Load(at_once, at_once, WARM_TOKENS))
        yield service


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """``variables`` in the environment meanwhile, and nothing of what is added to it afterwards."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _memory_mib() -> float:
    """Of all processes below this one, which are the service's."""
    return sum(map(_own_share, psutil.Process().children(recursive=True))) / 2**20


def _own_share(process: psutil.Process) -> float:
    """Bytes; shared pages are split among those who share them, where the system tells."""
    try:
        told = process.memory_full_info()
    except psutil.Error:
        return 0.0
    return float(getattr(told, "pss", told.uss))
