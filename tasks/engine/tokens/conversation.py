"""Renders a conversation so that the template's own control tokens can be told from what a user wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.contract.messages import ChatMessage
from tasks.engine.llama.vocabulary.special_tokens import SpecialToken
from tasks.engine.tokens.chat_template import ChatTemplate
from tasks.engine.tokens.marks import Marks
from tasks.engine.tokens.partition import partition

#: Roles that a template may make a control token of, as ``<|user|>``. Any other role is a user's text.
ROLES = frozenset(("system", "user", "assistant", "tool"))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation; ``marked`` has marks for what users wrote, ``None``: no mark is needed."""

    text: str
    marked: str | None = None


class Conversation:
    """A template, and the control tokens that users may not write."""

    def __init__(self, template: ChatTemplate, specials: Sequence[SpecialToken]) -> None:
        self._template, self._specials, self._marks = template, specials, Marks(specials)
        # Such a template may complete a control token with a user's text, as `<{{ role }}>`.
        self._completes = any(map(self._marks.is_beginning, template.literals))

    def render(
        self, messages: Sequence[ChatMessage], max_chars: int, check: Callable[[], None] = lambda: None
    ) -> Rendered:
        """The conversation as one text; see :meth:`ChatTemplate.render`."""
        marks = self._marks

        def render(change: Callable[[str], str]) -> str:
            return self._template.render(_changed(messages, change), max_chars, check)

        if not self._completes and not any(marks.may_spell(text) for text in _written(messages)):
            return Rendered(render(str))
        spelled, marked = render(marks.mark_spelled), render(marks.mark)
        # A template may look for a tag in a text, which it can't find between marks. Then what it makes of
        # the unmarked text counts, unless that has other control tokens.
        if marks.unmark(spelled) != marks.unmark(marked) and self._same_controls(spelled, marked):
            marked = spelled
        return Rendered(marks.unmark(marked), marked)

    def _same_controls(self, one: str, other: str) -> bool:
        found = [self._controls(text) for text in (one, other)]
        return found[0] == found[1]

    def _controls(self, text: str) -> list[int]:
        controls = [special for special in self._specials if special.is_control]
        pieces = partition(text, controls, limit=len(text))
        return [piece for piece in pieces if isinstance(piece, int)]


def _written(messages: Sequence[ChatMessage]) -> list[str]:
    """All that users wrote."""
    return [text for m in messages for text in (m.role, m.content) if text not in ROLES]


def _changed(messages: Sequence[ChatMessage], change: Callable[[str], str]) -> list[dict[str, str]]:
    return [
        {"role": m.role if m.role in ROLES else change(m.role), "content": change(m.content)}
        for m in messages
    ]
