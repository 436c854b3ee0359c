"""Each test has a short form, for ``make test``, and a long form, for ``make chaos``."""

from __future__ import annotations

import os

import pytest

from tests.chaos.proxy import Way


def number(variable: str, default: float) -> float:
    """A parameter of the long forms, from the environment."""
    return float(os.environ.get(variable, default))


def forms(name: str, short: int | None, variable: str, long: int) -> pytest.MarkDecorator:
    """Parametrize ``name``: ``short`` in ``make test``, ``variable`` or ``long`` in ``make chaos``."""
    long_form = pytest.param(int(number(variable, long)), marks=pytest.mark.chaos, id="long")
    if short is None:  # the short form is much like another test's
        return pytest.mark.parametrize(name, [long_form])
    return pytest.mark.parametrize(name, [pytest.param(short, marks=pytest.mark.e2e, id="short"), long_form])


#: Directions in which a network is silent, and for how many seconds; the long forms are for ``make chaos``.
SILENCES = [
    pytest.param(ways, silence_s, id=f"{name}-{silence_s}", marks=[] if is_short else pytest.mark.chaos)
    for ways, name, silence_s, is_short in (
        (tuple(Way), "both", 3, True),
        ((Way.TO_SERVER,), "there", 3, False),
        ((Way.TO_CLIENT,), "back", 3, False),
        (tuple(Way), "both", 8, False),
        ((Way.TO_SERVER,), "there", 8, False),
        ((Way.TO_CLIENT,), "back", 8, False),
    )
]
