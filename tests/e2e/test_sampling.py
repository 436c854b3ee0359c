"""What is chosen from the logits: end tokens, penalties, and parameters at their extremes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contract.messages import ChatMessage, GenerateRequest, Sampling
from tasks.engine.costs.threads import CorePool
from tasks.engine.llama.model import Model
from tasks.engine.llama.sampler import PENALTY_LAST_N
from tasks.engine.loop import Engine
from tasks.engine.prompt import PromptBuilder
from tasks.engine.sequence import Job
from tests.e2e.outputs import Outputs
from tests.e2e.truth import fresh, make_context
from tests.tiny_models import attends

pytestmark = pytest.mark.e2e

GREEDY = Sampling(temperature=0)
PROMPT = tuple(range(40, 120))


class Asked:
    """An engine that is asked one thing after another."""

    def __init__(self, model: Model) -> None:
        self.model, self._outputs, self._number = model, Outputs(), 0
        threads = CorePool(1, 1).member(0)
        self.engine = Engine(lambda: make_context(model, 2), self._outputs, threads)
        self.engine.start()

    def answer(self, prompt: Sequence[int], count: int, sampling: Sampling = GREEDY, **options) -> list[int]:
        self._number += 1
        key = str(self._number)
        self.engine.submit(Job(key, tuple(prompt), count, sampling, **options))
        self._outputs.wait()
        assert self._outputs.endings[key].error is None
        return list(self._outputs.tokens[key])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    asked = Asked(Model(attends(tmp_path_factory.mktemp("tiny") / "attends.gguf")))
    yield asked
    asked.engine.close()


@pytest.fixture(scope="module")
def real(model_path: Path) -> Iterator[Asked]:
    asked = Asked(Model(model_path))
    yield asked
    asked.engine.close()


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(temperature=0, repeat_penalty=1.1), Sampling(temperature=1.0, seed=3)],
    ids=["in one sweep", "greedy with a penalty", "drawn"],
)
def test_no_end_is_chosen_if_ends_are_ignored(real: Asked, sampling: Sampling) -> None:
    request = GenerateRequest("r", "m", messages=(ChatMessage("user", "Say hi."),))
    prompt, _ = PromptBuilder(real.model, 512).build(request)
    ending = real.answer(prompt, 100, sampling)
    assert real.model.is_eog(ending[-1])
    endless = real.answer(prompt, 100, sampling, ignore_eos=True)
    assert len(endless) == 100
    assert not any(map(real.model.is_eog, endless))


def test_ends_are_ignored_for_those_only_that_ask_for_it(real: Asked) -> None:
    request = GenerateRequest("r", "m", messages=(ChatMessage("user", "Say hi."),))
    prompt, _ = PromptBuilder(real.model, 512).build(request)
    outputs = Outputs()
    engine = Engine(lambda: make_context(real.model, 2), outputs, CorePool(1, 1).member(0))
    engine.start()
    for key in ("ends", "goes on"):
        engine.submit(Job(key, tuple(prompt), 80, GREEDY, ignore_eos=key == "goes on"))
    outputs.wait(2)
    engine.close()
    assert real.model.is_eog(outputs.tokens["ends"][-1])
    assert len(outputs.tokens["goes on"]) == 80


def penalized(
    logits: np.ndarray, text: Sequence[int], answer: Sequence[int], sampling: Sampling
) -> np.ndarray:
    """What llama.cpp's penalties make of the logits after ``text``, the prompt and the answer."""
    found = logits.astype(np.float64)
    for token in set(text[-PENALTY_LAST_N:]):
        found[token] *= sampling.repeat_penalty if found[token] <= 0 else 1 / sampling.repeat_penalty
    for token in set(answer[-PENALTY_LAST_N:]):
        count = list(answer[-PENALTY_LAST_N:]).count(token)
        found[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    return found


@pytest.mark.parametrize("num_delivered", [0, 1, 70])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0, repeat_penalty=1.5),
        Sampling(temperature=0, presence_penalty=1.5, frequency_penalty=0.3),
        Sampling(temperature=0, repeat_penalty=1.2, presence_penalty=0.5),
    ],
)
def test_penalties_count_the_prompt_and_what_was_delivered(
    tiny: Asked, sampling: Sampling, num_delivered: int
) -> None:
    delivered = tuple(150 + i % 5 for i in range(num_delivered))
    answer = tiny.answer(PROMPT, num_delivered + 30, sampling, delivered=delivered, ignore_eos=True)
    assert len(answer) == 30
    known = [*PROMPT, *delivered]
    logits = fresh(tiny.model, [*known, *answer])[len(known) - 1 : -1].copy()
    logits[:, tiny.model.ends] = -np.inf
    for number, token in enumerate(answer):
        said = [*delivered, *answer[:number]]
        found = penalized(logits[number], [*PROMPT, *said], said, sampling)
        assert found.max() - found[token] < 0.02


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-31, 1e-20])
def test_a_temperature_that_is_almost_nothing_is_greedy(tiny: Asked, temperature: float) -> None:
    assert tiny.answer(PROMPT, 20, Sampling(temperature=temperature)) == tiny.answer(PROMPT, 20)


extremes = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-45, 1e-6, 1e-5, 1e-3, 1.0, 2.0, 1e30, 1e39]),
    top_k=st.sampled_from([0, 1, 2, 258, 259, 260, 2**31, 2**40]),
    top_p=st.sampled_from([0.0, 1e-45, 1e-9, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 1e-45, 0.5, 1.0]),
    seed=st.integers(0, 2**40),
    presence_penalty=st.sampled_from([-1e39, -2.0, 0.0, 2.0, 1e39]),
    frequency_penalty=st.sampled_from([-1e39, -2.0, 0.0, 2.0, 1e39]),
    repeat_penalty=st.sampled_from([1e-45, 1e-3, 0.5, 1.0, 10.0, 1e39]),
)


@settings(deadline=None, max_examples=80)
@given(extremes)
def test_extreme_parameters_give_tokens_that_no_stage_has_ruled_out(tiny: Asked, sampling: Sampling) -> None:
    answer = tiny.answer(PROMPT, 12, sampling, ignore_eos=True)
    assert len(answer) == 12
    assert all(0 <= token < tiny.model.n_vocab for token in answer)
    assert not any(map(tiny.model.is_eog, answer))
    has_penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.repeat_penalty != 1
    is_narrow = 1 in (sampling.top_k, sampling.min_p) or sampling.top_p <= 1e-9 or sampling.temperature < 1e-5
    if is_narrow and not has_penalties:
        assert answer == tiny.answer(PROMPT, 12, ignore_eos=True)
