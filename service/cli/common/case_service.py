"""A service of one case, for the length of its measurement."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from service.bench.cases import Case
from service.bench.run_case import Service
from service.cli.common.private import service_at
from service.client.api_client import served_model
from service.client.load_run import Load, run_load

#: Tokens of the answers that warm a service up, and how many of them at most.
WARM_TOKENS, WARM_REQUESTS = 4, 4


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
