"""Readers accept what other releases write: unknown fields don't matter, and errors name what is wrong."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.contract import tolerant, versions
from tasks.contract.messages import (
    End,
    ErrorCode,
    Event,
    Failure,
    GenerateRequest,
    Outcome,
    Sampling,
    State,
    Timings,
    Usage,
)
from tasks.contract.prefixes import HEADER, prefixes_in
from tasks.contract.status import Child
from tasks.contract.tolerant import UnreadableError, read, read_or_warn
from tasks.contract.versions import UnsupportedVersionError
from tasks.store.registry import ServedModel
from tasks.store.status_reader import Finished
from tests.event_json import event_json
from tests.newer import NEWER, WiderRequest
from tests.unit.test_messages import ends, events, requests

pytestmark = pytest.mark.unit

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
unknown = st.dictionaries(st.text(min_size=1).map("later_{}".format), json_values, max_size=3)
children = st.builds(
    Child,
    id=st.text(),
    worker=st.text(),
    pid=st.integers(),
    model=st.text(),
    n_ctx=st.integers(),
    slots=st.integers(),
    work=st.just({"steps": 3}),
)
served = st.builds(ServedModel, name=st.text(), n_ctx=st.integers(), created=st.integers())
finished = st.builds(
    Finished,
    id=st.text(),
    model=st.text(),
    child=st.none() | st.text(),
    created=st.integers() | st.floats(allow_nan=False),
    finished=st.floats(allow_nan=False),
    end=ends,
)


def widened(raw: Any, draw: Any, *kept: str) -> Any:
    """The JSON with unknown fields in every object but those named ``kept``."""
    if isinstance(raw, list):
        return [widened(each, draw, *kept) for each in raw]
    if not isinstance(raw, dict):
        return raw
    known = {name: each if name in kept else widened(each, draw, *kept) for name, each in raw.items()}
    return {**draw(unknown), **known}


@given(requests, st.data())
def test_unknown_fields_of_a_request_are_dropped(request_: GenerateRequest, data: st.DataObject) -> None:
    text = json.dumps(widened(json.loads(request_.to_json()), data.draw))
    assert GenerateRequest.from_json(text) == request_


@given(events, st.data())
def test_unknown_fields_of_an_event_are_dropped(event: Event, data: st.DataObject) -> None:
    text = json.dumps(widened(json.loads(event_json(event)), data.draw))
    assert Event.from_json(text) == event


@given(children | served | finished, st.data())
def test_unknown_fields_of_what_is_shown_are_dropped(thing: Any, data: st.DataObject) -> None:
    raw = json.loads(json.dumps(asdict(thing)))
    assert read(type(thing), widened(raw, data.draw, "work")) == thing


def test_unknown_fields_of_an_outcome_are_dropped() -> None:
    end = {"state": "succeeded", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "images": 3}}
    raw = {"id": "r", "model": "m", "e2e_ms": 1, "end": end, "itl_ms": {}, "cost": 5}
    assert Outcome.from_json(json.dumps(raw)).usage == Usage(1, 2)


@given(json_values)
def test_foreign_json_is_a_named_error_and_no_other(raw: Any) -> None:
    for attempt in (GenerateRequest.from_json, Event.from_json):
        with pytest.raises((UnreadableError, UnsupportedVersionError)):
            attempt(json.dumps(raw))


def test_a_later_releases_request_is_read() -> None:
    wider = WiderRequest("r", "m", prompt="x", mood="glad")
    assert GenerateRequest.from_json(wider.to_json()) == GenerateRequest("r", "m", prompt="x")


def test_missing_fields_take_their_defaults() -> None:
    assert GenerateRequest.from_json('{"id":"r","model":"m","sampling":{"top_k":1}}') == GenerateRequest(
        "r", "m", sampling=Sampling(top_k=1)
    )
    assert read(End, {"state": "failed", "timings": {}}) == End(State.FAILED, timings=Timings())


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"id": "r"}, "GenerateRequest.model is missing"),
        ({"id": 3, "model": "m"}, "GenerateRequest.id is not of type str, but 3"),
        ({"id": "r", "model": "m", "stream": 1}, "GenerateRequest.stream is not of type bool, but 1"),
        ({"id": "r", "model": "m", "max_tokens": True}, "GenerateRequest.max_tokens is not of type int"),
        ({"id": "r", "model": "m", "stop": "x"}, "GenerateRequest.stop is not an array, but 'x'"),
        ({"id": "r", "model": "m", "messages": [{"role": "user"}]}, r"messages\[0\].content is missing"),
        ({"id": "r", "model": "m", "sampling": []}, "GenerateRequest.sampling is not an object"),
        ({"id": "r", "model": "m", "priority": "soon"}, "GenerateRequest.priority is not a Priority"),
    ],
)
def test_what_is_wrong_is_named(raw: dict[str, Any], told: str) -> None:
    with pytest.raises(UnreadableError, match=told):
        GenerateRequest.from_json(json.dumps(raw))


def test_an_unknown_error_code_keeps_its_message() -> None:
    error = read(End, {"state": "failed", "error": {"code": "out_of_paper", "message": "Buy paper."}}).error
    assert error == Failure(ErrorCode.INTERNAL, "Buy paper.")


def test_digests_of_a_conversation_are_text_or_left_out() -> None:
    assert prefixes_in({HEADER: ["a", 3, None, "b"]}) == ["a", "b"]
    for foreign in (None, 5, "text", {"a": 1}):
        assert prefixes_in({HEADER: foreign}) == []
    assert prefixes_in({}) == []


# ---- versions -----------------------------------------------------------------------------------


def test_no_version_is_version_1_and_is_not_written() -> None:
    versions.check("thing", {}, 1)
    versions.check("thing", {"v": 1}, 1)
    assert versions.written(1) == {}
    assert versions.written(2) == {"v": 2}


@pytest.mark.parametrize("version", [2, NEWER, "2", None, 0.5])
def test_an_unknown_version_is_refused_by_name(version: Any) -> None:
    with pytest.raises(UnsupportedVersionError, match=rf"The thing has format version {version}.* up to 1"):
        versions.check("thing", {"v": version}, 1)


def test_a_newer_process_reads_what_an_older_one_wrote() -> None:
    for raw in ({}, {"v": 1}, {"v": 2}, {"v": 3}):
        versions.check("thing", raw, 3)


def test_an_event_of_a_newer_format_is_refused_whatever_it_looks_like() -> None:
    with pytest.raises(UnsupportedVersionError, match="event has format version 99"):
        Event.from_json('{"v":99,"number":1}')


def test_what_is_left_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tolerant.warn_once.cache_clear()
    newer = json.dumps({"id": "w/7", "v": NEWER})
    with caplog.at_level(logging.WARNING):
        for text in (newer, newer, "{", newer, "{"):
            assert read_or_warn(Child, text, "child", 1) is None
    first, second = caplog.messages
    assert "child w/7 has format version 99" in first
    assert "Leaving out a child" in second
