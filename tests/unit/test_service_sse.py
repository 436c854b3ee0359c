"""What a stream looks like over HTTP, and the one body of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from service.errors import ApiError, from_failure
from service.streaming import sse
from service.streaming.answers import Answer
from service.streaming.client_gone import ClientGoneError
from service.streaming.listener import Listener, Mailbox, Source
from tasks.contract.messages import (
    ChatMessage,
    End,
    ErrorCode,
    Event,
    Failure,
    FinishReason,
    GenerateRequest,
    State,
    Timings,
    Usage,
)
from tests.unit.test_service_streams import FakeLog

pytestmark = pytest.mark.unit

CHAT = GenerateRequest(id="chatcmpl-1", model="m", messages=(ChatMessage("user", "hi"),))
TEXT = GenerateRequest(id="cmpl-1", model="m", prompt="hi")
DONE = End(State.SUCCEEDED, FinishReason.STOP, Usage(5, 2), Timings(cache_n=3, predicted_n=2))
FAILED = End(State.FAILED, error=Failure(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", "messages"))
FINISH = {"state": "succeeded", "finish_reason": "stop"}
EVENTS = [Event(1, "Hé"), Event(2, ""), Event(3, "\n\u2028x"), Event(4, "", (), DONE)]


def stream(answer: Answer, events: list[Event], after: int = 0, check: Any = lambda: None) -> sse.EventStream:
    log = FakeLog(events)
    listener = Listener(Source(Mailbox(), log, "c"), answer.id, after=max(0, after - 1), is_behind=True)
    return sse.EventStream(answer, listener, check, 2.0, after)


def messages(data: bytes) -> list[tuple[str | None, str]]:
    found = []
    for block in data.decode("ascii").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("id"), fields["data"]))
    return found


def chunks(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(text) for _, text in messages(data) if text != "[DONE]"]


def test_a_chat_stream_is_openais() -> None:
    data = b"".join(stream(Answer.to(CHAT, 7.9), EVENTS))
    assert [seq for seq, _ in messages(data)] == ["0", "1", "3", "4", None]
    assert messages(data)[-1][1] == "[DONE]"
    first, *texts, last = chunks(data)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in texts] == [{"content": "Hé"}, {"content": "\n\u2028x"}]
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert last["timings"]["predicted_n"] == 2
    for chunk in chunks(data):
        assert (chunk["id"], chunk["object"]) == ("chatcmpl-1", "chat.completion.chunk")
        assert (chunk["created"], chunk["model"]) == (7, "m")
        assert "usage" not in chunk


def test_a_text_stream_is_openais() -> None:
    found = chunks(b"".join(stream(Answer.to(TEXT, 7), EVENTS)))
    assert [chunk["choices"][0]["text"] for chunk in found] == ["Hé", "\n\u2028x", ""]
    assert {chunk["object"] for chunk in found} == {"text_completion"}


def test_usage_comes_last_when_asked_for() -> None:
    *others, last = chunks(b"".join(stream(Answer.to(CHAT, 7, with_usage=True), EVENTS)))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert all(chunk["usage"] is None for chunk in others)


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_resuming_repeats_no_text_and_always_closes(after: int) -> None:
    found = chunks(b"".join(stream(Answer.to(TEXT, 7), EVENTS, after)))
    texts = "".join(chunk["choices"][0]["text"] for chunk in found)
    assert texts == "".join(event.text for event in EVENTS if event.seq > after)
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


def test_an_error_before_any_text_is_a_status() -> None:
    with pytest.raises(ApiError) as caught:
        stream(Answer.to(CHAT, 7), [Event(1, "", (), FAILED)]).wait_first(5)
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_an_error_after_text_is_an_event() -> None:
    body = stream(Answer.to(CHAT, 7), [Event(1, "a"), Event(2, "", (), FAILED)])
    body.wait_first(5)
    data = b"".join(body)
    assert b"[DONE]" not in data
    assert chunks(data)[-1]["error"]["code"] == "context_length_exceeded"
    assert body.is_complete


def test_a_stream_whose_client_has_gone_just_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise ClientGoneError

    monkeypatch.setattr(sse, "CHECK_S", 0)
    body = stream(Answer.to(CHAT, 7), [Event(1, "a")], check=gone)
    assert b"".join(body) == b""
    assert not body.is_complete


def test_silence_is_filled_with_comments() -> None:
    box = Mailbox()
    listener = Listener(Source(box, FakeLog(), "c"), "id")
    body = iter(sse.EventStream(Answer.to(CHAT, 7), listener, lambda: None, 0))
    box.tick()
    assert next(body) == sse.COMMENT


@pytest.mark.parametrize(("value", "seq"), [(None, 0), ("", 0), ("12", 12), ("x", 0), ("-1", 0), ("²", 0)])
def test_last_event_id(value: str | None, seq: int) -> None:
    assert sse.last_event_id(value) == seq


def test_the_whole_answer_is_openais() -> None:
    body = Answer.to(CHAT, 7).whole(EVENTS)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hé\n\u2028x"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 7
    assert set(body["timings"]) >= {
        "prompt_n",
        "prompt_ms",
        "predicted_n",
        "cache_n",
        "queue_ms",
        "itl_p95_ms",
    }
    assert Answer.to(TEXT, 7).whole(EVENTS)["choices"][0]["text"] == "Hé\n\u2028x"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_failure_has_a_status(code: ErrorCode) -> None:
    error = from_failure(Failure(code, "text", "prompt"))
    assert 400 <= error.status < 600
    assert error.body["error"]["code"] == code.value


def official_events(data: bytes) -> list[Any]:
    """What OpenAI's client makes of a stream; to it, each blank line after an id ends an event."""
    decoder = SSEDecoder()
    return [each for line in data.decode("ascii").splitlines() if (each := decoder.decode(line))]


@given(st.lists(st.sampled_from([*EVENTS[:-1], None]), max_size=12), st.booleans(), st.booleans())
def test_blank_lines_only_end_events(said: list[Event | None], is_chat: bool, is_failure: bool) -> None:
    box, seq = Mailbox(), 0
    body = sse.EventStream(
        Answer.to(CHAT if is_chat else TEXT, 7), Listener(Source(box, FakeLog(), "c"), "id"), lambda: None, 0
    )
    parts, found = iter(body), b""
    for event in (*said, EVENTS[-1]):
        if event is None:
            box.tick()
        else:
            seq += 1
            end = (
                {"state": "failed", "error": {"code": "cancelled", "message": "m"}} if is_failure else FINISH
            )
            box.put({"s": seq, "t": event.text, "k": []} | ({"end": end} if event.end else {}))
        found += next(parts, b"")
    found += b"".join(parts)
    assert found.endswith(b"\n\n")
    blocks = found.decode("ascii").removesuffix("\n\n").split("\n\n")
    events = official_events(found)
    assert len(events) == len(blocks)
    assert all(event.data == "[DONE]" or json.loads(event.data) for event in events)
