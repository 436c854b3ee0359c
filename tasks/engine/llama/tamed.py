"""Brings sampling parameters into the range in which llama.cpp's 32-bit arithmetic gives no NaN; pure."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

from tasks.contract.messages import Sampling

#: A lower temperature is greedy: logits divided by it may overflow, and no second token has a chance anyway.
#: vLLM has the same bound (``_SAMPLING_EPS``).
GREEDY_BELOW = 1e-5
#: A higher temperature makes all tokens equally likely, too.
HOTTEST = 1e6
#: Bounds of ``repeat_penalty`` and of the two other penalties; logits are seldom beyond 100.
REPEAT_RANGE, PENALTY_RANGE = (1e-3, 1e3), (-1e3, 1e3)
_INT32_MAX = 2**31 - 1


def tamed(sampling: Sampling) -> Sampling:
    """The parameters with the same effect within the range; one that is not a number becomes its default."""
    temperature = _within(sampling, "temperature", 0.0, HOTTEST)
    return replace(
        sampling,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=int(_within(sampling, "top_k", 0, _INT32_MAX)),
        top_p=_within(sampling, "top_p", 0.0, 1.0),
        min_p=_within(sampling, "min_p", 0.0, 1.0),
        presence_penalty=_within(sampling, "presence_penalty", *PENALTY_RANGE),
        frequency_penalty=_within(sampling, "frequency_penalty", *PENALTY_RANGE),
        repeat_penalty=_within(sampling, "repeat_penalty", *REPEAT_RANGE),
    )


def _within(sampling: Sampling, name: str, least: float, most: float) -> float:
    value: float = getattr(sampling, name)
    if isnan(value):
        value = getattr(Sampling(), name)
    return max(least, min(most, value))
