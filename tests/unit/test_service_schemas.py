"""The parser turns any input into a typed request, or into a 400 that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ApiError
from service.intake.json_body import parse_object
from service.intake.schemas import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOPS,
    ChatBody,
    CompletionBody,
    Limits,
    to_request,
    validate,
)
from tasks.contract.messages import ChatMessage, GenerateRequest, Priority, Sampling

pytestmark = pytest.mark.unit

T = TypeVar("T")

TEXT_PART = {"type": "text", "text": "x"}
HI = {"messages": [{"role": "user", "content": "hi"}]}
FIELDS = [*ChatBody.model_fields, *CompletionBody.model_fields, "n", "tools", "logprobs", "role", "content"]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(FIELDS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from(FIELDS) | st.text(), values)


def chat(**fields: Any) -> GenerateRequest:
    return to_request(validate(ChatBody, {**HI, **fields}), "id", "m", Limits())


def outcome(step: Callable[[], T]) -> T | ApiError:
    """What ``step`` returns, or the refusal that it raises; any other exception is a bug."""
    try:
        return step()
    except ApiError as error:
        return error


def refused(kind: type[ChatBody] | type[CompletionBody], body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        to_request(validate(kind, body), "id", "m", Limits())
    assert caught.value.status == 400
    return caught.value


@given(bodies)
def test_any_object_is_a_request_or_a_400_with_a_field(body: dict[str, Any]) -> None:
    for kind in (ChatBody, CompletionBody):
        found = outcome(lambda kind=kind: to_request(validate(kind, body), "id", "m", Limits()))  # type: ignore[misc]
        if isinstance(found, ApiError):
            assert found.status == 400
            assert found.param
            json.dumps(found.body)
        else:
            assert GenerateRequest.from_json(found.to_json()) == found


@given(values, st.sampled_from(FIELDS))
def test_any_value_of_one_field_is_taken_or_refused(value: Any, field: str) -> None:
    found = outcome(lambda: chat(**{field: value}))
    if isinstance(found, ApiError):
        assert found.status == 400
        assert found.param is not None
        assert found.param.startswith(field)


@given(st.binary() | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_object_or_a_400(body: bytes) -> None:
    found = outcome(lambda: parse_object(body, "application/json"))
    assert found.status == 400 if isinstance(found, ApiError) else isinstance(found, dict)


def test_nan_and_infinity_are_refused_by_their_field() -> None:
    for value in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        body = parse_object(b'{"prompt": "x", "temperature": ' + value + b"}", "application/json")
        assert refused(CompletionBody, body).param == "temperature"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"a": "\xff"}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
        "{}".encode("utf-16"),
    ],
)
def test_what_is_not_one_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body, "application/json")
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": "\xef\xbb\xbf"}', "application/json") == {"a": "\ufeff"}


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity", "nonsense"])
def test_a_compressed_body_is_refused(encoding: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(b"{}", "application/json", encoding)
    assert (caught.value.status, caught.value.param) == (415, "Content-Encoding")
    assert caught.value.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity "])
def test_a_body_as_it_is_is_read(encoding: str | None) -> None:
    assert parse_object(b"{}", "application/json", encoding) == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (r'{"messages": [{"role": "user", "content": [{"type": "\ud800"}]}]}', "messages[0].content[0].type"),
        (r'{"messages": [{"role": "\uDFFF"}]}', "messages[0].role"),
        (r'{"user": "a\ud83d"}', "user"),
        (r'{"metadata": {"a": ["b", "\ude00\ud83d"]}}', "metadata.a[1]"),
        (r'{"metadata": {"\ud800": 1}}', "metadata"),
        (r'{"\ud800": 1}', ""),
    ],
)
def test_half_a_surrogate_pair_is_refused_everywhere(body: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body.encode(), "application/json")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_unicode", param)


def test_whole_surrogate_pairs_are_characters() -> None:
    assert parse_object(rb'{"\ud83d\ude00": "\uD83D\uDE00"}', "application/json") == {"😀": "😀"}


@pytest.mark.parametrize(("depth", "is_fine"), [(60, True), (70, False), (500, False)])
def test_depth(depth: int, is_fine: bool) -> None:
    body = b'{"metadata": ' + b"[" * depth + b"]" * depth + b"}"
    found = outcome(lambda: parse_object(body, "application/json"))
    assert isinstance(found, dict) == is_fine


@pytest.mark.parametrize(
    ("content_type", "is_fine"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("Application/JSON", True),
        ("application/problem+json", True),
        ("text/plain", False),
        ("multipart/form-data; boundary=x", False),
        (None, False),
    ],
)
def test_content_type(content_type: str | None, is_fine: bool) -> None:
    if is_fine:
        assert parse_object(b"{}", content_type) == {}
        return
    with pytest.raises(ApiError) as caught:
        parse_object(b"{}", content_type)
    assert caught.value.status == 415


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [{"role": "user", "content": [TEXT_PART] * (MAX_PARTS + 1)}]}, "messages[0].content"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\udc00"}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 10**7}, "max_completion_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -1}, "min_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": ["x" * 300]}, "stop[0]"),
        ({"stop": ["a", "\ud800"]}, "stop[1]"),
        ({"stop": 7}, "stop"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": []}, "stream_options"),
        ({"ignore_eos": 0}, "ignore_eos"),
        ({"priority": "urgent"}, "priority"),
        ({"model": 5}, "model"),
        ({"model": "\ud800"}, "model"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"grammar": "root ::= x"}, "grammar"),
    ],
)
def test_bad_chat_fields_are_named(fields: dict[str, Any], param: str) -> None:
    assert refused(ChatBody, {**HI, **fields}).param == param


@pytest.mark.parametrize("prompt", [None, "", 5, [], ["a", "b"], [1, 2], [[1]], "\ud800", {}])
def test_bad_prompts_are_named(prompt: Any) -> None:
    assert refused(CompletionBody, {"prompt": prompt}).param == "prompt"


def test_a_prompt_or_messages_are_required() -> None:
    assert refused(ChatBody, {}).param == "messages"
    assert refused(CompletionBody, {}).param == "prompt"


def test_defaults_are_llama_cpps() -> None:
    request = chat()
    assert request.sampling == Sampling()
    assert request.max_tokens is None
    assert request.priority is Priority.INTERACTIVE
    assert not request.stream


def test_null_is_the_default_everywhere() -> None:
    optional = {name: None for name, field in ChatBody.model_fields.items() if not field.is_required()}
    assert chat(**optional) == chat()


def test_what_other_clients_send_is_ignored() -> None:
    harmless = {"user": "u", "metadata": {"a": 1}, "store": False, "n": 1, "logprobs": False, "tools": None}
    assert chat(**harmless, response_format={"type": "text"}, parallel_tool_calls=True) == chat()


def test_all_fields_arrive() -> None:
    request = chat(
        temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=3, presence_penalty=1, frequency_penalty=-1,
        repeat_penalty=1.1, stop=["a", "b"], stream=True, ignore_eos=True, priority="batch", max_tokens=9,
    )  # fmt: skip
    assert request.sampling == Sampling(0, 7, 0.5, 0.1, 3, 1, -1, 1.1)
    assert request.stop == ("a", "b")
    assert (request.stream, request.ignore_eos, request.priority) == (True, True, Priority.BATCH)
    assert request.max_tokens == 9


def test_messages_of_parts_and_developers() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "developer", "content": "be"}, {"role": "user", "content": parts}])
    assert request.messages == (ChatMessage("system", "be"), ChatMessage("user", "a\nb"))


@pytest.mark.parametrize(("kind", "body"), [(ChatBody, HI), (CompletionBody, {"prompt": "x"})])
def test_the_newer_limit_wins(kind: type[ChatBody] | type[CompletionBody], body: dict[str, Any]) -> None:
    asked = {**body, "max_tokens": 5, "max_completion_tokens": 7}
    assert to_request(validate(kind, asked), "id", "m", Limits()).max_tokens == 7


def test_as_many_messages_and_parts_as_documented() -> None:
    part = {"role": "user", "content": [TEXT_PART] * MAX_PARTS}
    request = chat(messages=[part] + HI["messages"] * (MAX_MESSAGES - 1))
    assert len(request.messages or ()) == MAX_MESSAGES


def test_a_limit_above_any_context_is_left_to_the_worker() -> None:
    assert chat(max_tokens=900_000).max_tokens == 900_000


def test_the_settings_limit_counts_when_the_request_has_none() -> None:
    body = validate(ChatBody, HI)
    assert to_request(body, "id", "m", Limits(n_predict=5)).max_tokens == 5


def test_one_prompt_in_a_list_is_one_prompt() -> None:
    assert to_request(validate(CompletionBody, {"prompt": ["x"]}), "id", "m", Limits()).prompt == "x"


@pytest.mark.parametrize(
    ("given_seed", "seed"), [(None, None), (-1, None), (0, 0), (2**32 - 1, 0), (-2, 0xFFFFFFFD)]
)
def test_seeds_fit_llama_cpp(given_seed: int | None, seed: int | None) -> None:
    assert chat(seed=given_seed).sampling.seed == seed


def test_as_many_stops_as_documented() -> None:
    assert len(chat(stop=["x"] * MAX_STOPS).stop) == MAX_STOPS
