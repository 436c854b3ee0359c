"""The contract: each side reads what the other side writes, whatever the content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.contract.messages import (
    ChatMessage,
    End,
    ErrorCode,
    Event,
    Failure,
    FinishReason,
    GenerateRequest,
    Priority,
    Sampling,
    State,
    Timings,
    Usage,
)
from tests.event_json import event_json

pytestmark = pytest.mark.unit

finite = st.floats(allow_nan=False, allow_infinity=False)
samplings = st.builds(Sampling, temperature=finite, top_k=st.integers(), seed=st.none() | st.integers())
messages = st.lists(st.builds(ChatMessage, role=st.text(), content=st.text()), max_size=3).map(tuple)
requests = st.builds(
    GenerateRequest,
    id=st.text(),
    model=st.text(),
    prompt=st.none() | st.text(),
    messages=st.none() | messages,
    max_tokens=st.none() | st.integers(1),
    sampling=samplings,
    stop=st.lists(st.text()).map(tuple),
    ignore_eos=st.booleans(),
    stream=st.booleans(),
    priority=st.sampled_from(Priority),
    timeout_s=st.none() | finite,
)
ends = st.builds(
    End,
    state=st.sampled_from([state for state in State if state.is_final]),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    usage=st.none() | st.builds(Usage, st.integers(0), st.integers(0)),
    timings=st.none() | st.builds(Timings, prompt_n=st.integers(0), ttft_ms=finite),
    error=st.none() | st.builds(Failure, st.sampled_from(ErrorCode), st.text(), st.none() | st.text()),
)
events = st.builds(
    Event,
    seq=st.integers(1),
    text=st.text(),
    tokens=st.lists(st.integers(0)).map(tuple),
    end=st.none() | ends,
)


@given(requests)
def test_a_request_survives_the_wire(request_):
    assert GenerateRequest.from_json(request_.to_json()) == request_


@given(events)
def test_an_event_survives_the_wire(event):
    assert Event.from_json(event_json(event)) == event


def test_an_empty_list_from_lua_is_no_tokens():
    assert Event.from_json('{"s":3,"t":"","k":{}}').tokens == ()


@pytest.mark.parametrize("state", State)
def test_only_ended_states_are_final(state):
    assert state.is_final == (state in {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED})
