"""A vocabulary's special tokens, and the bytes of its longest token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.engine.llama.library import llama_cpp as ll


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that llama.cpp finds in a text before it does anything else.

    A control token has a meaning for the model and is found only on request; a token that the model's author
    defined is plain text. ``strips_left`` and ``strips_right`` drop the white space on that side.
    """

    id: int
    text: str
    is_control: bool
    strips_left: bool = False
    strips_right: bool = False


def special_tokens(vocab: Any) -> tuple[SpecialToken, ...]:
    """The special tokens in llama.cpp's order: the longest spelling first."""
    found = (_special(vocab, token) for token in range(ll.llama_vocab_n_tokens(vocab)))
    return tuple(sorted(filter(None, found), key=lambda special: -len(special.text.encode())))


def longest_token(vocab: Any) -> int | None:
    """Bytes of text that one token stands for at most; ``None``: any number, white space is dropped."""
    if ll.llama_vocab_type(vocab) in (ll.LLAMA_VOCAB_TYPE_WPM, ll.LLAMA_VOCAB_TYPE_UGM):
        return None
    return max(_sizes(vocab), default=None)


def _sizes(vocab: Any) -> Iterator[int]:
    for token in range(ll.llama_vocab_n_tokens(vocab)):
        # Without room llama.cpp answers with the negative size.
        yield -ll.llama_token_to_piece(vocab, token, None, 0, 0, True)


def _special(vocab: Any, token: int) -> SpecialToken | None:
    kind = ll.llama_vocab_get_attr(vocab, token)
    is_control = bool(kind & (ll.LLAMA_TOKEN_ATTR_CONTROL | ll.LLAMA_TOKEN_ATTR_UNKNOWN))
    if not is_control and not kind & ll.LLAMA_TOKEN_ATTR_USER_DEFINED:
        return None
    text = (ll.llama_vocab_get_text(vocab, token) or b"").decode(errors="ignore")
    left, right = (bool(kind & strip) for strip in (ll.LLAMA_TOKEN_ATTR_LSTRIP, ll.LLAMA_TOKEN_ATTR_RSTRIP))
    return SpecialToken(token, text, is_control, left, right) if text else None
