"""The Prefer header."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ApiError
from service.intake.prefer import Prefer

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("header", "prefer", "applied"),
    [
        (None, Prefer(), ""),
        ("", Prefer(), ""),
        ("respond-async", Prefer(is_async=True), "respond-async"),
        ("Respond-Async", Prefer(is_async=True), "respond-async"),
        ("wait=10", Prefer(wait_s=10), "wait=10"),
        ('wait="10"', Prefer(wait_s=10), "wait=10"),
        ("wait = 10", Prefer(wait_s=10), "wait=10"),
        ("wait=0", Prefer(wait_s=0), "wait=0"),
        ("respond-async, wait=10", Prefer(True, 10), "respond-async, wait=10"),
        ("respond-async,wait=10;x=y", Prefer(True, 10), "respond-async, wait=10"),
        ("wait=10, wait=20", Prefer(wait_s=10), "wait=10"),
        ("wait=99999999999999999999", Prefer(wait_s=120), "wait=120"),
        ('foo; bar="a, wait=3", return=minimal', Prefer(), ""),
    ],
)
def test_parse(header: str | None, prefer: Prefer, applied: str) -> None:
    parsed = Prefer.parse(header, 120)
    assert parsed == prefer
    assert parsed.applied == applied


@pytest.mark.parametrize("header", ["wait=soon", "wait", "wait=-1", "wait=1.5", "wait=²"])
def test_a_wait_that_is_no_whole_number_is_refused(header: str) -> None:
    with pytest.raises(ApiError) as caught:
        Prefer.parse(header, 120)
    assert (caught.value.status, caught.value.param) == (400, "Prefer")


@given(st.text())
def test_any_header_is_read_or_refused(header: str) -> None:
    with suppress(ApiError):
        parsed = Prefer.parse(header, 120)
        assert parsed.wait_s is None or 0 <= parsed.wait_s <= 120
