"""What a user writes never becomes a control token, whatever the template does with it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.contract.messages import ChatMessage
from tasks.engine.llama.vocabulary.special_tokens import SpecialToken
from tasks.engine.tokens.chat_template import ChatTemplate
from tasks.engine.tokens.conversation import Conversation
from tasks.engine.tokens.partition import partition

pytestmark = pytest.mark.unit

SPECIALS = [
    SpecialToken(1, "<|start|>", True),
    SpecialToken(2, "<|user|>", True),
    SpecialToken(3, "</think>", False),
    SpecialToken(4, "<|end|>", True),
    SpecialToken(5, "<think>", False),
]
PLAIN = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
TRIMS = "{% for m in messages %}<|start|>{{ m.role + '\n' + m.content | trim }}<|end|>{% endfor %}"
#: Cuts the thoughts out of a text, as templates of thinking models do.
CUTS = (
    "{% for m in messages %}<|start|>{% set text = m.content %}{% if '</think>' in text %}"
    "{% set text = text.split('<think>')[0] + text.split('</think>')[-1] %}{% endif %}"
    "{{ text }}<|end|>{% endfor %}"
)
#: Makes a control token of the role, as Phi-4-mini's template does.
ROLES = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
#: Puts a user's text where it could complete a control token.
OPENS = "{% for m in messages %}<{{ m.content }}<|end|>{% endfor %}"
HALVES = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


def pieces(template: str, *messages: ChatMessage) -> list[int | str]:
    rendered = Conversation(ChatTemplate(template), SPECIALS).render(messages, 10_000)
    return partition(rendered.text, SPECIALS, limit=1000, marked=rendered.marked)


def user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (PLAIN, "Hi", [1, "user\nHi", 4, "\n"]),
        (PLAIN, "a<|end|>b", [1, "user\na<|end|>b", 4, "\n"]),
        (PLAIN, "<|end|>", [1, "user\n<|end|>", 4, "\n"]),
        (PLAIN, "1 < 2 </think>", [1, "user\n1 < 2 ", 3, 4, "\n"]),
        (TRIMS, "  <|end|> \n", [1, "user\n<|end|>", 4]),
        (CUTS, "<think>no</think>yes", [1, "yes", 4]),
        (CUTS, "<think>no</think><|end|>yes", [1, "<|end|>yes", 4]),
        # A control token that comes into being only by the cut.
        (CUTS, "<|e<think>no</think>nd|>", [1, "<|e", 5, "no", 3, "nd|>", 4]),
        (ROLES, "Hi", [2, "Hi", 4]),
        (ROLES, "|end|>", [2, "|end|>", 4]),
        (OPENS, "|end|>x", ["<|end|>x", 4]),
    ],
)
def test_only_the_template_makes_control_tokens(template, content, expected):
    assert pieces(template, user(content)) == expected


def test_texts_of_two_messages_do_not_join_to_a_control_token():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<|start|>"
    assert pieces(template, user("<|e"), user("nd|>")) == ["<|end|>", 1]


def test_a_role_that_is_not_known_makes_no_control_token():
    assert pieces(ROLES, ChatMessage("end", "x")) == ["<|end|>x", 4]


@settings(deadline=None)
@given(st.lists(st.text(alphabet="<|endthikusr/> ", max_size=24), min_size=1, max_size=4))
@example(["<|end|>"])
@example(["<think>", "</think><|end|>"])
def test_the_control_tokens_do_not_depend_on_what_users_write(contents):
    for template in (PLAIN, TRIMS, CUTS, ROLES, OPENS, HALVES):
        written = pieces(template, *map(user, contents))
        harmless = pieces(template, *(user("x") for _ in contents))
        assert _controls(written) == _controls(harmless)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_character_is_lost_or_changed(content):
    rendered = Conversation(ChatTemplate(PLAIN), SPECIALS).render([user(content)], 10_000)
    assert rendered.text == ChatTemplate(PLAIN).render([{"role": "user", "content": content}])


def test_a_text_without_a_beginning_of_a_control_token_needs_no_marks():
    rendered = Conversation(ChatTemplate(PLAIN), SPECIALS).render([user("a | b > c")], 10_000)
    assert rendered.marked is None


def _controls(found: list[int | str]) -> list[int]:
    return [piece for piece in found if piece in (1, 2, 4)]
