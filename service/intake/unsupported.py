"""Refuses fields of OpenAI and llama-server that change the answer but that this server doesn't support.

Ignoring such a field would silently give a wrong answer, so it is refused unless its value asks for nothing.
All other unknown fields (``user``, ``metadata``, ``store``, …) are harmless and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors import ApiError, bad_request

_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})

#: For each field, the values that ask for nothing, besides those in :data:`_NOTHING`.
_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (),
    "top_logprobs": (),
    "logit_bias": (),
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "echo": (),
    "suffix": (),
    "grammar": (),
    "json_schema": (),
    "mirostat": (),
}
_MESSAGE_FIELDS = ("tool_calls", "function_call", "audio")


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise ``ApiError`` 400 naming the first field of ``body`` that asks for something unsupported."""
    for field, harmless in _FIELDS.items():
        if field in body and not _asks_nothing(body[field], harmless):
            raise _not_supported(field)
    messages = body.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        _refuse_in_message(index, message)


def _refuse_in_message(index: int, message: Any) -> None:
    for field in _MESSAGE_FIELDS if isinstance(message, dict) else ():
        if field in message and not _asks_nothing(message[field], ()):
            raise _not_supported(f"messages[{index}].{field}")


def _asks_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    # Compare the types too: in Python, True equals 1 and 0 equals False.
    return any(type(value) is type(known) and value == known for known in (*_NOTHING, *harmless))


def _not_supported(param: str) -> ApiError:
    message = f"{param} is not supported by this server; leave it out."
    return bad_request(message, param, "unsupported_parameter")
