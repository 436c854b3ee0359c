"""Cells that are reused give the same logits as cells that are computed, for every kind of memory."""

from __future__ import annotations

import pydoc_data.topics

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.table import CostTable
from tasks.engine.llama.model import Model
from tests.e2e.truth import NEAR, Answers, compute, fresh, make_context
from tests.gemma import gemma_path
from tests.tiny_models import FAMILIES, WINDOW

pytestmark = pytest.mark.e2e

#: Guesses are always worth a try, and so is padding.
EAGER = CostTable(((1, StepCosts(((1, 9.0), (2, 8.0), (3, 7.0), (8, 1.0)), 0.1)),))


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    write = FAMILIES[request.param]
    return Model(write(tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"))


def words(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 259, count)]


@pytest.mark.parametrize("more", [0, 1, WINDOW // 2, 3 * WINDOW, 9 * WINDOW])
@pytest.mark.parametrize("size", [1, WINDOW - 1, WINDOW, 3 * WINDOW])
def test_a_copy_has_the_cells_or_says_that_it_has_not(model: Model, size: int, more: int) -> None:
    tokens, last = words(1, size + more), words(2, 1)
    context = make_context(model, 2)
    compute(context, 1, words(3, 20))
    compute(context, 0, tokens)
    is_copied = context.copy(0, 1, size)
    if is_copied:
        found = compute(context, 1, last, size)[-1]
        np.testing.assert_allclose(found, fresh(model, [*tokens[:size], *last])[-1], atol=NEAR)
    context.close()
    assert is_copied == (more == 0 or model.rewinds)


@pytest.mark.parametrize("size", [1, WINDOW, 5 * WINDOW])
@pytest.mark.parametrize("more", [0, 1, 3 * WINDOW])
def test_a_cut_leaves_the_cells_or_says_that_it_does_not(model: Model, size: int, more: int) -> None:
    tokens, last = words(1, size + more), words(2, 1)
    context = make_context(model, 2)
    compute(context, 0, tokens)
    is_cut = context.trim(0, size)
    if is_cut:
        found = compute(context, 0, last, size)[-1]
        np.testing.assert_allclose(found, fresh(model, [*tokens[:size], *last])[-1], atol=NEAR)
    assert context.trim(0, size + 5) is False
    assert context.trim(0, 0)
    context.close()
    assert is_cut == (more == 0 or model.rewinds)


def test_a_prefix_of_a_prompt_that_goes_on_past_its_window(model: Model) -> None:
    """The prompt is being decoded in one slot while its beginning is asked in another."""
    prefix, tail = words(4, 3 * WINDOW), words(5, 6 * WINDOW)
    answers = Answers(model, 2)
    answers.ask("long", [*prefix, *tail], 200)
    assert answers.outputs.begun.wait(30)
    answers.ask("short", prefix, 20)
    answers.check(2)
    answers.engine.close()
    assert answers.reused("short") == (len(prefix) - 1 if model.rewinds else 0)


def test_turns_of_a_conversation_go_on_from_the_cells_of_the_turn_before(model: Model) -> None:
    answers = Answers(model, 3)
    said = words(6, 2 * WINDOW)
    for turn in range(3):
        answers.ask(str(turn), said, 12)
        answers.check(1)
        said += [*answers.outputs.tokens[str(turn)], *words(7 + turn, WINDOW)]
    answers.engine.close()
    assert answers.reused("2") > answers.reused("1") > 0


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 6 * WINDOW), st.integers(0, 40), st.integers(1, 30)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_answers_are_the_same_whatever_is_kept_copied_cut_guessed_or_padded(
    model: Model, asked: list[tuple[int, int, int, int]], is_eager: bool
) -> None:
    answers = Answers(model, 3, EAGER if is_eager else None)
    for number, (seed, size, tail, count) in enumerate(asked):
        # Few beginnings, so that prompts share them; each third prompt waits until the others are answered.
        answers.ask(str(number), [*words(seed, size), *words(100 + number, tail)], count)
        if number % 3 == 2:
            answers.check(3)
    answers.check(len(asked) % 3)
    answers.engine.close()


def test_wrong_guesses_leave_no_trace(model: Model) -> None:
    """A prompt that repeats itself is guessed from; what follows in the answer is something else."""
    answers = Answers(model, 1, EAGER)
    answers.ask("loop", words(8, 8) * 12, 150)
    answers.check(1)
    answers.engine.close()
    assert (answers.work.counts["guessed"] > answers.work.counts["right"]) == model.rewinds


def test_padding_leaves_no_trace_in_the_slots_that_it_uses(model: Model) -> None:
    """Idle slots keep a conversation while others decode beside them, padded."""
    answers = Answers(model, 3, EAGER)
    kept = words(9, 3 * WINDOW)
    answers.ask("kept", kept, 5)
    answers.check(1)
    for seed in (10, 11):
        answers.ask(f"beside {seed}", words(seed, WINDOW), 60)
    answers.check(2)
    answers.ask("goes on", [*kept, *answers.outputs.tokens["kept"][:4], *words(12, 9)], 20)
    answers.check(1)
    answers.engine.close()
    assert answers.reused("goes on") >= len(kept)
    assert answers.work.counts["padding"] > 0


def test_gemma_answers_a_prefix_of_a_prompt_that_is_being_decoded() -> None:
    """Its window is 512 tokens; the prefix is longer, and the prompt goes on for longer than that."""
    model = Model(gemma_path())
    manual = str(pydoc_data.topics.topics["assignment"])
    prefix = model.tokenize(manual[:2600], add_special=True)
    tail = model.tokenize(manual[2600:5600], add_special=False)
    assert min(len(prefix), len(tail)) > model.n_swa
    answers = Answers(model, 2, n_ctx=2048, n_batch=512, threads=2, near=1.0)
    answers.ask("long", [*prefix, *tail], 60)
    assert answers.outputs.begun.wait(120)
    answers.ask("short", prefix, 24)
    answers.check(2)
    answers.engine.close()
    assert answers.reused("short") == len(prefix) - 1
