"""No header and no body costs more than its length: each reader is linear, shown by doubling the input."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest

from service.errors import ApiError
from service.intake import idempotency, unsupported
from service.intake.json_body import parse_object
from service.intake.prefer import Prefer
from service.intake.schemas import ChatBody, CompletionBody, GenerateBody, Limits, to_request, validate
from service.streaming.sse import last_event_id
from tests.growth import assert_linear

pytestmark = pytest.mark.unit

HEADERS: dict[str, Callable[[int], str]] = {
    "parameters, spaces, a quote": lambda n: "a;" * n + " " * 2 * n + '"',
    "quotes, spaces, a quote": lambda n: 'a;"' + ' ";"' * n + " " * n + '"',
    "parameters in quotes": lambda n: '"a;"' * n + " " * 2 * n + '"',
    "names and parameters": lambda n: "a;b" * n + '"',
    "escapes": lambda n: 'a="' + '\\"' * n,
    "backslashes": lambda n: 'a="' + "\\" * n,
    "spaces": lambda n: " " * n + '"',
    "spaces around equals": lambda n: "a" + " =" * n,
    "commas": lambda n: "," * n,
    "semicolons": lambda n: "a" + ";" * n + '"',
    "letters": lambda n: "a" * n + "(",
    "open quotes": lambda n: '"' * n,
    "open quotes with commas": lambda n: '\\",' * n,
    "digits": lambda n: "wait=" + "9" * n,
}
BODIES: dict[str, Callable[[int], str]] = {
    "a text": lambda n: json.dumps({"prompt": "a" * n}),
    "escapes": lambda n: '{"prompt": "' + "\\n" * n + '"}',
    "surrogates": lambda n: '{"prompt": "' + "\\ud83d\\ude00" * n + '"}',
    "half surrogates": lambda n: '{"prompt": "' + "\\ud83d" * n + '"}',
    "brackets": lambda n: "[" * n,
    "closed brackets": lambda n: '{"prompt": "a", "x": ' + "[" * n + "]" * n + "}",
    "a long name before many members": lambda n: '{"' + "\\ud83d\\ude00" * n + '": [' + "1," * n + "[]]}",
    "long names within each other": lambda n: (
        ('{"\\ud83d\\ude00' + "k" * (n // 30) + '":') * 30 + "1" + "}" * 30
    ),
    "spaces": lambda n: " " * n + "x",
    "a digit": lambda n: '{"prompt": "a", "seed": ' + "1" * n + "}",
    "a fraction": lambda n: '{"prompt": "a", "top_p": 0.' + "1" * n + "}",
    "an exponent": lambda n: '{"prompt": "a", "top_p": 1e-' + "1" * n + "}",
    "keys": lambda n: json.dumps({"prompt": "a", **{f"k{i}": i for i in range(n)}}),
    "keys of a message": lambda n: json.dumps(
        {"messages": [{"role": "user", "content": "a", **{f"k{i}": i for i in range(n)}}]}
    ),
    "messages": lambda n: json.dumps({"messages": [{"role": "user", "content": "a"}] * n}),
    "bad messages": lambda n: json.dumps({"messages": [{"role": "x"}] * n}),
    "parts": lambda n: json.dumps(
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * n}]}
    ),
    "prompts": lambda n: json.dumps({"prompt": ["a"] * n}),
    "stops": lambda n: json.dumps({"prompt": "a", "stop": ["a"] * n}),
}


def read_body(text: str) -> None:
    kind: type[GenerateBody] = ChatBody if "messages" in text else CompletionBody
    with suppress(ApiError):
        raw = parse_object(text.encode(), "application/json")
        idempotency.parse("key", None, "/", raw)
        unsupported.refuse_unsupported(raw)
        to_request(validate(kind, raw), "id", "model", Limits.none())


def read_headers(header: str) -> None:
    with suppress(ApiError):
        Prefer.parse(header, 120)
    with suppress(ApiError):
        idempotency.parse(header, header, "/", {})
    with suppress(ApiError):
        parse_object(b"{}", header)
    last_event_id(header)


@pytest.mark.parametrize("make", HEADERS.values(), ids=HEADERS.keys())
def test_headers_are_read_in_one_pass(make: Callable[[int], str]) -> None:
    assert_linear(read_headers, make, 64)


@pytest.mark.parametrize("make", HEADERS.values(), ids=HEADERS.keys())
def test_long_headers_are_read_in_one_pass(make: Callable[[int], str]) -> None:
    assert_linear(read_headers, make, 1024)


@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES.keys())
def test_bodies_are_read_in_one_pass(make: Callable[[int], str]) -> None:
    assert_linear(read_body, make, 2000)
