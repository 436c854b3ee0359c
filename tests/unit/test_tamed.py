"""Sampling parameters within the range of 32-bit arithmetic."""

from __future__ import annotations

from math import isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.contract.messages import Sampling
from tasks.engine.llama.tamed import tamed

pytestmark = pytest.mark.unit

#: Logits of the largest size that a model may give, and the likeliest two next to each other.
LOGITS = np.array([1e4, 9_999.0, 0.0, -1e4], np.float32)

numbers = st.one_of(st.floats(), st.sampled_from([0.0, 1e-45, 1e-30, 1e38, 1e300]))
samplings = st.builds(
    Sampling,
    temperature=numbers,
    top_k=st.integers(),
    top_p=numbers,
    min_p=numbers,
    presence_penalty=numbers,
    frequency_penalty=numbers,
    repeat_penalty=numbers,
)


@given(samplings)
def test_nothing_overflows(sampling: Sampling) -> None:
    safe = tamed(sampling)
    assert tamed(safe) == safe
    penalized = LOGITS * np.float32(safe.repeat_penalty) - np.float32(64 * safe.frequency_penalty)
    divided = LOGITS / np.float32(safe.repeat_penalty) - np.float32(safe.presence_penalty)
    for logits in (penalized, divided):
        assert np.isfinite(logits).all()
        if safe.temperature:
            assert np.isfinite(logits / np.float32(safe.temperature)).all()
    assert 0 <= safe.top_k < 2**31
    assert all(isfinite(share) and 0 <= share <= 1 for share in (safe.top_p, safe.min_p))


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-31, 1e-30, 1e-9, -1.0])
def test_a_temperature_that_is_almost_nothing_is_greedy(temperature: float) -> None:
    assert tamed(Sampling(temperature=temperature)).temperature == 0


def test_parameters_in_use_stay_as_they_are() -> None:
    usual = Sampling(0.7, 40, 0.9, 0.05, 1, 0.5, -0.5, 1.3)
    assert tamed(usual) == usual
