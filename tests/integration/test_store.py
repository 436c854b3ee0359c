"""Every change of a request in Redis, by tasks.store.requests and its scripts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import (
    ChatMessage,
    End,
    ErrorCode,
    Event,
    FinishReason,
    GenerateRequest,
    Outcome,
    Sampling,
    State,
    Timings,
    Usage,
)
from tasks.queue.errors import QueueFull
from tasks.queue.submit import Admission, RequestQueue
from tasks.store.requests import RequestStore
from tasks.worker.attempt import Attempt
from tasks.worker.attempt_store import Append, AttemptStore, SuspectError

pytestmark = pytest.mark.integration

MODEL = "m"
LIST = "inference.m"
TTL_S = 100
MAX_ATTEMPTS = 3
REQUEST = GenerateRequest(
    id="r",
    model=MODEL,
    messages=(ChatMessage("user", 'Wie "heißt" du? ☃ </s>'),),
    sampling=Sampling(seed=7),
    stop=("\n", "]"),
)
SUCCEEDED = End(
    State.SUCCEEDED, FinishReason.STOP, Usage(3, 2), Timings(prompt_n=3, predicted_n=2, queue_ms=1.5)
)


@pytest.fixture
def store(redis: Redis) -> RequestStore:
    return RequestStore(redis, result_ttl_s=TTL_S)


def submit(
    store: RequestStore, request_id: str = "r", *, watch: str = "", timeout: float = 60.0, cap: int = 10
) -> Admission:
    return RequestQueue(store, cap).submit(replace(REQUEST, id=request_id), watch, timeout)


def attempts(store: RequestStore) -> AttemptStore:
    return AttemptStore(store.redis, TTL_S)


def queued(store: RequestStore, request_id: str = "r", **options: Any) -> None:
    assert submit(store, request_id, **options).is_new


def pop(store: RequestStore) -> None:
    assert store.redis.rpop(LIST)


def running(store: RequestStore, request_id: str = "r", **options: Any) -> Attempt:
    queued(store, request_id, **options)
    pop(store)
    return claimed(store, request_id)


def claimed(store: RequestStore, request_id: str = "r") -> Attempt:
    claim = attempts(store).claim(request_id, "child", MAX_ATTEMPTS)
    assert claim is not None
    return claim


def state_of(store: RequestStore, request_id: str = "r") -> State:
    record = store.fetch(request_id)
    assert record is not None
    return record.state


def end_of(store: RequestStore, request_id: str = "r") -> End:
    end = store.read_log(request_id)[-1].end
    assert end is not None
    return end


def outcomes(store: RequestStore) -> list[Outcome]:
    raw = cast("list[bytes]", store.redis.lrange(redis_names.OUTCOMES, 0, -1))
    return [Outcome.from_json(text) for text in raw]


def published(redis: Redis, channel: str) -> Any:
    pubsub = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    pubsub.subscribe(channel)
    pubsub.get_message(timeout=5)
    return pubsub


def next_events(pubsub: Any) -> list[tuple[str, Event]]:
    message = pubsub.get_message(timeout=5)
    return [(request_id, Event.from_dict(raw)) for request_id, raw in json.loads(message["data"])]


# ---- submit -------------------------------------------------------------------------------------


def test_record_keeps_the_request(store: RequestStore) -> None:
    queued(store)
    record = store.fetch("r")
    assert record is not None
    assert record.request == REQUEST
    assert (record.state, record.model, record.attempt, record.seq) == (State.QUEUED, MODEL, 0, 0)


def test_unknown_request_has_no_record(store: RequestStore) -> None:
    assert store.fetch("r") is None
    assert store.watch("r", "c") is None
    assert store.cancel("r") is None
    assert attempts(store).claim("r", "child", MAX_ATTEMPTS) is None
    assert store.read_log("r") == []


def test_id_is_taken_once(store: RequestStore, redis: Redis) -> None:
    queued(store)
    again = submit(store)
    assert (again.id, again.is_new, again.state) == ("r", False, State.QUEUED)
    assert redis.llen(LIST) == 1


def test_live_record_does_not_expire(store: RequestStore, redis: Redis) -> None:
    queued(store)
    assert redis.ttl(redis_names.record("r")) == -1


def test_refused_request_leaves_nothing(store: RequestStore) -> None:
    queued(store, "a")
    with pytest.raises(QueueFull) as full:
        submit(store, "b", cap=1)
    assert full.value.waiting == 1
    assert store.fetch("b") is None


def test_what_was_accepted_is_found_although_the_queue_is_full(store: RequestStore) -> None:
    queued(store, "a")
    assert not submit(store, "a", cap=1).is_new


# ---- claim --------------------------------------------------------------------------------------


def test_suspect_is_not_claimed_by_the_way(store: RequestStore, redis: Redis) -> None:
    queued(store)
    redis.hset(redis_names.record("r"), "deaths", 2)
    with pytest.raises(SuspectError):
        attempts(store).claim("r", "child", MAX_ATTEMPTS, suspect_from=2)
    assert state_of(store) is State.QUEUED
    assert attempts(store).claim("r", "child", MAX_ATTEMPTS) is not None


def test_claim_hands_over_the_request(store: RequestStore) -> None:
    claim = running(store)
    assert claim.request == REQUEST
    assert (claim.number, claim.first_seq, claim.first_ms) == (1, 0, None)
    assert 0 <= claim.queue_ms <= claim.age_ms
    assert state_of(store) is State.RUNNING
    assert store.num_running() == 1


def test_second_claim_goes_on_where_the_first_was(store: RequestStore) -> None:
    first = running(store)
    attempts(store).append([Append("r", first.number, 1, "Hi", (1, 2))])
    second = claimed(store)
    assert (second.number, second.seq, second.queue_ms) == (2, 1, first.queue_ms)
    assert second.first_ms is not None
    assert store.num_running() == 1


def test_a_claim_whose_answer_was_lost_is_asked_for_again(store: RequestStore, redis: Redis) -> None:
    queued(store)
    pop(store)
    first, again = (attempts(store).claim("r", "child", MAX_ATTEMPTS, fence="mine") for _ in range(2))
    assert first is not None
    assert again is not None
    assert replace(again, age_ms=first.age_ms) == first
    assert again.number == 1
    assert redis.llen(redis_names.claims(MODEL)) == 1
    assert attempts(store).append([Append("r", again.number, 1, "a", (1,), fence="mine")]) == [True]
    other = attempts(store).claim("r", "other", MAX_ATTEMPTS, fence="other")
    assert other is not None
    assert other.number == 2


def test_finished_request_is_not_claimed(store: RequestStore) -> None:
    queued(store)
    store.cancel("r")
    assert attempts(store).claim("r", "child", MAX_ATTEMPTS) is None


def test_request_that_waited_too_long_expires_at_its_claim(store: RequestStore) -> None:
    queued(store, timeout=0.0)
    assert attempts(store).claim("r", "child", MAX_ATTEMPTS) is None
    assert state_of(store) is State.EXPIRED


def test_claim_of_a_lost_run_never_expires(store: RequestStore, redis: Redis) -> None:
    running(store)
    redis.hset(redis_names.record("r"), "queue_timeout", 0)
    assert claimed(store).number == 2


def test_only_the_latest_claims_are_kept(store: RequestStore, redis: Redis) -> None:
    for n in range(40):
        running(store, f"r{n}")
    assert redis.llen(redis_names.claims(MODEL)) == 32


def test_claim_announces_the_free_place(store: RequestStore, redis: Redis) -> None:
    pubsub = published(redis, redis_names.FREED)
    running(store)
    assert pubsub.get_message(timeout=5)["data"] == MODEL.encode()


# ---- append -------------------------------------------------------------------------------------


def test_appended_events_are_numbered_and_read_back(store: RequestStore) -> None:
    claim = running(store)
    texts = ('A "quoted"', "ß☃\n", "")
    for n, text in enumerate(texts):
        assert attempts(store).append([Append("r", claim.number, n + 1, text, (n,))]) == [True]
    log = store.read_log("r")
    assert [(event.seq, event.text, event.tokens) for event in log] == [
        (n + 1, text, (n,)) for n, text in enumerate(texts)
    ]
    assert store.read_log("r", after=2) == log[2:]


def test_silent_append_writes_nothing(store: RequestStore) -> None:
    claim = running(store)
    assert attempts(store).append([Append("r", claim.number, 1)]) == [True]
    assert store.read_log("r") == []


def test_end_finishes_the_request(store: RequestStore, redis: Redis) -> None:
    claim = running(store)
    last = Append("r", claim.number, 1, "!", (5,), 3, SUCCEEDED, (1.25, 2.5))
    assert attempts(store).append([last]) == [True]
    assert end_of(store) == SUCCEEDED
    assert state_of(store) is State.SUCCEEDED
    assert store.num_running() == 0
    assert 0 < redis.ttl(redis_names.record("r")) <= TTL_S
    assert 0 < redis.ttl(redis_names.log("r")) <= TTL_S


def test_outcome_has_what_metrics_need(store: RequestStore) -> None:
    claim = running(store)
    attempts(store).append([Append("r", claim.number, 1, "!", (5,), 3, SUCCEEDED, (1.25, 2.5))])
    [outcome] = outcomes(store)
    assert (outcome.id, outcome.model, outcome.state) == ("r", MODEL, State.SUCCEEDED)
    assert (outcome.usage, outcome.timings) == (SUCCEEDED.usage, SUCCEEDED.timings)
    assert outcome.itl_ms == (1.25, 2.5)
    assert outcome.e2e_ms >= 0
    assert outcome.error_code is None


def test_stale_attempt_is_told_to_stop_and_writes_nothing(store: RequestStore) -> None:
    stale = running(store)
    current = claimed(store)
    items = [Append("r", stale.number, 1, "old", (1,)), Append("r", current.number, 1, "new", (2,))]
    assert attempts(store).append(items) == [False, True]
    assert [event.text for event in store.read_log("r")] == ["new"]


def test_repeated_append_is_written_once(store: RequestStore) -> None:
    claim = running(store)
    piece = Append("r", claim.number, 1, "a", (1,))
    last = Append("r", claim.number, 2, "b", (2,), 3, SUCCEEDED)
    assert attempts(store).append([piece, piece]) == [True, True]
    assert attempts(store).append([last]) == attempts(store).append([last]) == [True]
    assert [event.text for event in store.read_log("r")] == ["a", "b"]
    assert len(outcomes(store)) == 1


def test_finished_request_takes_no_more(store: RequestStore) -> None:
    claim = running(store)
    store.cancel("r")
    assert (
        attempts(store).append([Append("r", claim.number, 1, "late", (1,)), Append("x", 1, 1, "?", (1,))])
        == [False] * 2
    )
    assert [event.text for event in store.read_log("r")] == [""]


def test_step_is_published_once_a_channel(store: RequestStore, redis: Redis) -> None:
    pubsub = published(redis, "api")
    claims = [running(store, request_id, watch="api") for request_id in ("a", "b")]
    attempts(store).append([Append(c.request.id, c.number, 1, c.request.id, (1,)) for c in claims])
    assert next_events(pubsub) == [("a", Event(1, "a", (1,))), ("b", Event(1, "b", (1,)))]


def test_request_has_several_watchers_and_keeps_the_last_eight(store: RequestStore, redis: Redis) -> None:
    queued(store, watch="first")
    for n in range(8):
        assert store.watch("r", f"c{n}") is State.QUEUED
    store.watch("r", "c0")
    watchers = redis.hget(redis_names.record("r"), "watch")
    assert watchers == b"c1 c2 c3 c4 c5 c6 c7 c0"


# ---- cancel, expire -----------------------------------------------------------------------------


def test_cancel_frees_a_waiting_requests_place(store: RequestStore, redis: Redis) -> None:
    pubsub = published(redis, redis_names.FREED)
    queued(store)
    assert store.cancel("r") is State.QUEUED
    assert redis.llen(LIST) == 0
    assert pubsub.get_message(timeout=5)["data"] == MODEL.encode()
    assert store.expire_due() == 0
    assert redis.zcard(redis_names.DEADLINES) == 0


@pytest.mark.parametrize("prepare", [queued, running])
def test_cancel_ends_a_request_with_an_error(store: RequestStore, redis: Redis, prepare: Any) -> None:
    pubsub = published(redis, "api")
    prepare(store, watch="api")
    store.cancel("r", ErrorCode.REQUEST_TIMEOUT, "too slow")
    [(_, event)] = next_events(pubsub)
    assert event.end == end_of(store)
    assert event.end is not None
    assert event.end.state is state_of(store) is State.CANCELLED
    assert event.end.finish_reason == FinishReason.CANCELLED
    assert event.end.error is not None
    assert (event.end.error.code, event.end.error.message) == (ErrorCode.REQUEST_TIMEOUT, "too slow")
    assert [outcome.error_code for outcome in outcomes(store)] == ["request_timeout"]


def test_cancel_counts_what_was_delivered(store: RequestStore) -> None:
    claim = running(store)
    attempts(store).append([Append("r", claim.number, 1, "ab", (1, 2), prompt_tokens=9)])
    store.cancel("r")
    end = end_of(store)
    assert end.usage == Usage(9, 2)
    assert end.timings is not None
    assert (end.timings.predicted_n, end.timings.attempts) == (2, 1)
    assert end.timings.ttft_ms > 0
    assert store.read_log("r")[-1].seq == 2


def test_cancel_of_a_finished_request_changes_nothing(store: RequestStore) -> None:
    queued(store)
    store.cancel("r")
    log = store.read_log("r")
    assert store.cancel("r") is State.CANCELLED
    assert store.read_log("r") == log
    assert len(outcomes(store)) == 1


def test_expire_ends_the_overdue_only(store: RequestStore, redis: Redis) -> None:
    queued(store, "overdue", timeout=0.0)
    queued(store, "patient")
    assert store.expire_due() == 1
    assert state_of(store, "overdue") is State.EXPIRED
    assert state_of(store, "patient") is State.QUEUED
    [message] = cast("list[bytes]", redis.lrange(LIST, 0, -1))
    assert json.loads(message)["headers"]["id"] == "patient"
    error = end_of(store, "overdue").error
    assert error is not None
    assert error.code is ErrorCode.QUEUE_TIMEOUT


def test_running_request_does_not_expire(store: RequestStore, redis: Redis) -> None:
    running(store)
    redis.zadd(redis_names.DEADLINES, {"r": 0})
    assert store.expire_due() == 0
    assert state_of(store) is State.RUNNING
