"""A prompt that is being made into tokens: it is noted, and broken off when nobody wants it any more."""

from __future__ import annotations

import pytest

from tasks.contract.messages import GenerateRequest
from tasks.worker.attempt import Attempt
from tasks.worker.liveness import preparing
from tasks.worker.liveness.preparing import NotWantedError, Preparing

pytestmark = pytest.mark.unit


@pytest.fixture
def attempt() -> Attempt:
    return Attempt(
        request=GenerateRequest("r", "m", prompt="Hi"),
        number=1,
        fence="f",
        queue_ms=0.0,
        age_ms=0.0,
        first_ms=None,
        first_seq=0,
    )


def test_a_prompt_is_noted_while_it_is_prepared(attempt):
    prompts = Preparing()
    with prompts.prompt_of(attempt) as check:
        check()
        assert len(prompts) == 1
        assert prompts.gets_on()
    assert len(prompts) == 0


def test_a_prompt_that_makes_no_progress_is_seen(attempt, monkeypatch):
    monkeypatch.setattr(preparing, "_PIECE_S", -1.0)
    prompts = Preparing()
    with prompts.prompt_of(attempt):
        assert not prompts.gets_on()
    assert prompts.gets_on()


def test_an_attempt_that_is_over_is_broken_off(attempt):
    with Preparing().prompt_of(attempt) as check:
        check()
        attempt.stop()
        with pytest.raises(NotWantedError):
            check()
