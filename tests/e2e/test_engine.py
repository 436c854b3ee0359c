"""The engine on the real model: text, batches, cancels, faults; no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.contract.messages import ChatMessage, ErrorCode, FinishReason, GenerateRequest, Sampling
from tasks.engine.costs.threads import CorePool
from tasks.engine.errors import ModelError
from tasks.engine.llama.context import Context
from tasks.engine.llama.model import Model
from tasks.engine.loop import Engine, EngineOptions
from tasks.engine.prompt import PromptBuilder, PromptError
from tasks.engine.sequence import Job
from tests.e2e.outputs import Outputs

pytestmark = pytest.mark.e2e

COLOURS = (
    "red", "green", "blue", "black", "white", "gold", "pink", "grey",
    "cyan", "lime", "navy", "teal", "plum", "rust", "sand", "jade",
)  # fmt: skip
GREEDY = Sampling(temperature=0)
N_CTX, SLOTS = 512, 16


@pytest.fixture(scope="module")
def model(model_path: Path) -> Model:
    return Model(model_path)


@pytest.fixture
def outputs() -> Outputs:
    return Outputs()


@pytest.fixture
def engine(model: Model, outputs: Outputs) -> Iterator[Engine]:
    engine = Engine(
        lambda: Context(model, slots=SLOTS, n_ctx=N_CTX, n_batch=256, threads=1),
        outputs,
        CorePool(1, 1).member(0),
    )
    engine.start()
    yield engine
    engine.close()


def job(model: Model, key: str, text: str, max_tokens: int = 16, **options) -> Job:
    return Job(key, tuple(model.tokenize(text, add_special=False)), max_tokens, GREEDY, **options)


def test_emoji_split_across_tokens_come_out_whole(model, engine, outputs):
    prompt = "😀 🦙 🌍 🧑‍🚀 😀 🦙 🌍 🧑‍🚀 😀 🦙 🌍 🧑‍🚀 😀 🦙"
    engine.submit(job(model, "emoji", prompt, 40, ignore_eos=True))
    outputs.wait()
    pieces = [model.piece(token) for token in outputs.tokens["emoji"]]
    split = [piece for piece in pieces if piece.decode("utf-8", "ignore").encode() != piece]
    assert split, "the answer has no token that splits a character, so it shows nothing"
    assert outputs.texts["emoji"] == b"".join(pieces).decode("utf-8", "replace")


def test_a_batch_of_16_gives_each_request_its_own_text(model, engine, outputs):
    for word in COLOURS:
        engine.submit(job(model, word, f"My colour is {word}. " * 4 + "My colour is", 4))
    assert sorted(outputs.wait(len(COLOURS))) == sorted(COLOURS)
    assert {word: outputs.texts[word].partition(".")[0].strip() for word in COLOURS} == {
        w: w for w in COLOURS
    }


def test_reused_cells_give_the_same_answer_as_fresh_ones(model, engine, outputs):
    text = "The capital of France is Paris. The capital of Italy is"
    for key in ("fresh", "reused"):
        engine.submit(job(model, key, text))
        outputs.wait()
    assert outputs.endings["fresh"].cache_n == 0
    assert outputs.endings["reused"].cache_n == outputs.endings["fresh"].prompt_n - 1
    assert outputs.texts["reused"] == outputs.texts["fresh"]


def test_a_prefix_copied_from_another_slot_gives_the_same_answer(model, engine, outputs):
    text = "The capital of France is Paris. The capital of Spain is Madrid. The capital of Italy is"
    engine.submit(job(model, "alone", text, 8))
    outputs.wait()
    for key in ("holder", "copier"):
        engine.submit(job(model, key, text, 8))
    outputs.wait(2)
    assert outputs.endings["copier"].cache_n == outputs.endings["alone"].prompt_n - 1
    assert outputs.texts["copier"] == outputs.texts["holder"] == outputs.texts["alone"]


def test_sixteen_prompts_at_once_compute_what_they_share_once(model, engine, outputs):
    system = "You answer briefly and in plain words. " * 40
    for number in range(SLOTS):
        engine.submit(
            job(model, str(number), f"{system} What is {number} plus {number}?", 2, ignore_eos=True)
        )
    outputs.wait(SLOTS)
    shared = len(model.tokenize(system, add_special=False))
    computed = sum(outputs.endings[str(number)].prompt_n for number in range(SLOTS))
    assert shared < computed < 2 * shared


def test_a_resumed_job_goes_on_after_the_delivered_tokens(model, engine, outputs):
    text = "One, two, three, four,"
    engine.submit(job(model, "whole", text, 12, ignore_eos=True))
    outputs.wait()
    whole = outputs.tokens["whole"]
    engine.submit(job(model, "rest", text, 12, delivered=whole[:5], ignore_eos=True))
    outputs.wait()
    assert outputs.tokens["rest"] == whole[5:]
    delivered = b"".join(map(model.piece, whole[:5])).decode()
    assert delivered + outputs.texts["rest"] == outputs.texts["whole"]


def test_a_stop_string_ends_the_text_before_it(model, engine, outputs):
    engine.submit(job(model, "stop", "1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3", 40, stop=("7 8",)))
    outputs.wait()
    assert outputs.texts["stop"].strip() == "4 5 6"
    assert outputs.endings["stop"].reason is FinishReason.STOP


def test_the_context_ends_an_answer_without_a_limit(model, engine, outputs):
    engine.submit(job(model, "long", "word " * 480, 10_000, ignore_eos=True))
    outputs.wait()
    assert outputs.endings["long"].reason is FinishReason.LENGTH
    assert outputs.endings["long"].prompt_n + outputs.endings["long"].predicted_n == N_CTX + 1


def test_a_cancelled_job_frees_its_slot_and_harms_no_other(model, engine, outputs):
    engine.submit(job(model, "gone", "Once upon a time", 400, ignore_eos=True))
    assert outputs.begun.wait(30)
    engine.cancel("gone")
    engine.submit(job(model, "stays", "Once upon a time", 8, ignore_eos=True))
    assert outputs.wait() == ["stays"]
    assert engine.num_running == 0
    assert "gone" not in outputs.endings


def test_a_deadline_ends_a_job_with_an_error(model, outputs):
    now = [0.0]
    engine = Engine(
        lambda: Context(model, slots=2, n_ctx=N_CTX, n_batch=256, threads=1),
        outputs,
        CorePool(1, 1).member(0),
        options=EngineOptions(clock=lambda: now[0]),
    )
    engine.start()
    engine.submit(job(model, "late", "Once upon a time", 400, deadline=5.0, ignore_eos=True))
    assert outputs.begun.wait(30)
    now[0] = 6.0
    outputs.wait()
    error = outputs.endings["late"].error
    assert error is not None
    assert error.code is ErrorCode.REQUEST_TIMEOUT
    engine.close()


@pytest.mark.parametrize(
    ("sampling", "count"),
    [
        (Sampling(temperature=1.0, seed=7), 24),
        (Sampling(temperature=0, repeat_penalty=1.3), 24),
        (Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, presence_penalty=1.0, seed=1), 24),
    ],
)
def test_a_seed_gives_the_same_answer_again(model, engine, outputs, sampling, count):
    prompt = tuple(model.tokenize("A story about a llama:", add_special=False))
    for key in ("first", "second"):
        engine.submit(Job(key, prompt, count, sampling, ignore_eos=True))
        outputs.wait()
    assert len(outputs.tokens["first"]) == count
    assert outputs.tokens["second"] == outputs.tokens["first"]


def test_prompts_are_checked_against_the_context(model):
    builder = PromptBuilder(model, 64)
    ask = ChatMessage("user", "word " * 100)
    with pytest.raises(PromptError) as long:
        builder.build(GenerateRequest("1", "m", messages=(ask,)))
    assert (long.value.failure.code, long.value.failure.param) == (
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        "messages",
    )
    for asked, given in ((64, 63), (63, 63), (5, 5)):
        assert builder.build(GenerateRequest("2", "m", prompt="word", max_tokens=asked))[1] == given


def test_the_chat_template_is_the_models_own(model):
    tokens, room = PromptBuilder(model, 512).build(
        GenerateRequest("1", "m", messages=(ChatMessage("user", "Hi"),))
    )
    assert tokens[:2] == tuple(model.tokenize("<|im_start|>system", add_special=False))
    assert room == 512 - len(tokens)


@pytest.mark.parametrize("kept", [0, 4, 5_000, 10_000_000])
def test_a_cut_file_is_refused_with_what_to_do(model_path, tmp_path, kept):
    path = tmp_path / "cut.gguf"
    with model_path.open("rb") as file:
        path.write_bytes(file.read(kept))
    with pytest.raises(ModelError, match=r"truncated|not a GGUF file|can't load"):
        Model(path, vocab_only=True)
