"""A service of one case, which lives as long as its measurement runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from service.bench.cases import Case
from service.bench.run_case import Service
from service.cli.common.private import service_at
from service.client.api_client import served_model
from service.client.load_run import Load, run_load

#: Tokens of each answer that warms a service up, and the most such answers.
WARM_TOKENS, WARM_REQUESTS = 4, 4


@contextmanager
def serving(case: Case) -> Iterator[Service]:
    """Start a service of ``case``, warm it up, and end it afterwards.

    Raises:
        click.ClickException: the service can't start; the text says why.
        ClientError: the service answers no request.
    """
    with _environment(case.variables), service_at(None, tell=lambda _text: None) as url:
        service = Service(case, url, served_model(url))
        at_once = min(WARM_REQUESTS, case.workers * case.slots)
        run_load(url, service.model, Load(at_once, at_once, WARM_TOKENS))
        yield service


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set ``variables`` in the environment, and restore the whole environment afterwards."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
