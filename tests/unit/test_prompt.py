"""Requests that a model's own template or vocabulary makes impossible."""

from pathlib import Path
from typing import Any, cast

import pytest

from tasks.contract.messages import ChatMessage, ErrorCode, GenerateRequest
from tasks.engine.llama.vocabulary.special_tokens import SpecialToken
from tasks.engine.prompt import PromptBuilder, PromptError
from tasks.engine.tokens.tokenizer import Tokenizer

pytestmark = pytest.mark.unit


class TemplateModel:
    """A model of which only the chat template matters; a token is a character."""

    path = Path("fake.gguf")
    bos, eos, longest_token = -1, -1, 4
    frame: tuple[list[int], list[int]] = ([], [])
    special_tokens: tuple[SpecialToken, ...] = ()

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def spelling(self, token: int) -> str:
        return ""

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        return [ord(character) for character in text]


def builder(template: str | None) -> PromptBuilder:
    return PromptBuilder(cast(Any, TemplateModel(template)), n_ctx=64)


CHAT = GenerateRequest("1", "m", messages=(ChatMessage("user", "Hi"), ChatMessage("user", "again")))


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('Conversation roles must alternate') }}",
        "{{ messages[5].content }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for",
    ],
)
def test_a_template_that_fails_refuses_the_messages(template):
    with pytest.raises(PromptError) as refused:
        builder(template).build(CHAT)
    assert refused.value.failure.code is ErrorCode.INVALID_PROMPT
    assert refused.value.failure.param == "messages"


def test_the_templates_own_reason_is_told():
    with pytest.raises(PromptError, match="roles must alternate"):
        builder("{{ raise_exception('roles must alternate') }}").build(CHAT)


def test_a_model_without_a_template_says_where_to_go():
    with pytest.raises(PromptError, match="--chat-template, or use /v1/completions") as refused:
        builder(None).build(CHAT)
    assert refused.value.failure.param == "messages"


def test_a_given_template_replaces_the_models_own():
    model = cast(Any, TemplateModel("{{ messages[5].content }}"))
    tokens, _ = PromptBuilder(model, 64, "{{ messages[0].content }}").build(CHAT)
    assert "".join(map(chr, tokens)) == "Hi"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set x = 'x' * 99999999999 %}",
        "{{ messages * 99999999999 }}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
    ],
)
def test_a_template_without_end_ends(template):
    with pytest.raises(PromptError) as refused:
        builder(template).build(CHAT)
    assert refused.value.failure.code is ErrorCode.INVALID_PROMPT


def test_an_endless_text_is_too_long():
    with pytest.raises(PromptError, match="at least 65 tokens") as refused:
        builder("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}").build(CHAT)
    assert refused.value.failure.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


class GoneError(Exception):
    pass


def leave() -> None:
    raise GoneError


def test_rendering_can_be_broken_off():
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(GoneError):
        builder(loops).build(CHAT, leave)


def test_tokenizing_can_be_broken_off():
    model = TemplateModel(None)
    model.special_tokens = (SpecialToken(1, "<end>", is_control=True),)
    with pytest.raises(GoneError):
        Tokenizer(model, 10_000).encode("<end>" * 1000, check=leave)


def test_a_text_that_cannot_fit_is_never_tokenized():
    class Untouched(TemplateModel):
        def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
            raise AssertionError

    with pytest.raises(PromptError, match="at least 65 tokens") as refused:
        PromptBuilder(cast(Any, Untouched(None)), n_ctx=64).build(GenerateRequest("1", "m", prompt="x" * 257))
    assert refused.value.failure.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


def test_an_empty_prompt_is_refused_by_a_model_without_a_first_token():
    with pytest.raises(PromptError, match="empty"):
        builder(None).build(GenerateRequest("1", "m", prompt=""))


def test_a_template_renders_the_messages():
    tokens, room = builder("{% for m in messages %}{{ m.content }};{% endfor %}").build(CHAT)
    assert "".join(map(chr, tokens)) == "Hi;again;"
    assert room == 64 - len(tokens)


@pytest.mark.parametrize(("asked", "given"), [(None, 60), (1, 1), (60, 60), (61, 60), (10**6, 60)])
def test_more_tokens_than_there_is_room_for_are_as_many_as_there_are(asked, given):
    request = GenerateRequest("1", "m", prompt="four", max_tokens=asked)
    assert builder(None).build(request)[1] == given


@pytest.mark.parametrize("num", [64, 65, 200])
@pytest.mark.parametrize("asked", [None, 5])
def test_a_prompt_without_room_for_an_answer_is_refused_in_openais_words(num, asked):
    with pytest.raises(PromptError) as refused:
        builder(None).build(GenerateRequest("1", "m", prompt="x" * num, max_tokens=asked))
    failure = refused.value.failure
    assert (failure.code, failure.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "prompt")
    assert "This model's maximum context length is 64 tokens." in failure.message
    assert f"{num} tokens" in failure.message
