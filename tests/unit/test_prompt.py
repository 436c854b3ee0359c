"""Requests that a model's own template or vocabulary makes impossible."""

from pathlib import Path
from typing import Any, cast

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from tasks.contract.messages import ChatMessage, ErrorCode, GenerateRequest
from tasks.engine.prompt import PromptBuilder, PromptError

pytestmark = pytest.mark.unit


class TemplateModel:
    """A model of which only the chat template matters; a token is a character."""

    path = Path("fake.gguf")
    adds_bos, bos = False, -1

    def __init__(self, template: str | None) -> None:
        self._template = template

    def make_chat_formatter(self) -> Any:
        if self._template is None:
            return None
        return Jinja2ChatFormatter(self._template, eos_token="", bos_token="")

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
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
    with pytest.raises(PromptError, match="/v1/completions"):
        builder(None).build(CHAT)


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


@pytest.mark.parametrize("num", [64, 65, 500])
@pytest.mark.parametrize("asked", [None, 5])
def test_a_prompt_without_room_for_an_answer_is_refused_in_openais_words(num, asked):
    with pytest.raises(PromptError) as refused:
        builder(None).build(GenerateRequest("1", "m", prompt="x" * num, max_tokens=asked))
    failure = refused.value.failure
    assert (failure.code, failure.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "prompt")
    assert "This model's maximum context length is 64 tokens." in failure.message
    assert f"{num} tokens" in failure.message
