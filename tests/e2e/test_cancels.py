"""A request that is cancelled leaves its slot, whatever it waits for there."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tasks.contract import redis_names
from tasks.contract.messages import State
from tests.e2e.serving import Served
from tests.e2e.test_recovery import store_of, submit, wait_claimed
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

#: Prompts of some 3,500 tokens, computed 32 at a time: a minute's work for all of them.
SHAPE = ("--workers", "1", "--slots", "4", "--threads", "1", "--n-ctx", "4096", "--n-batch", "32")


def long_prompt(word: str) -> str:
    return f"{word} " * 3500


def test_cancelled_requests_leave_before_their_turn_in_prefill(start_service: Callable[..., Served]) -> None:
    served = start_service(*SHAPE).wait_ready()
    store = store_of(served)
    asked = {"first": "house", "shares its prefix": "house", "waits behind it": "river"}
    ids = {name: submit(served, long_prompt(word), max_tokens=4, stream=True) for name, word in asked.items()}
    for request_id in ids.values():
        wait_claimed(store, request_id, 1)
    for name in ("shares its prefix", "waits behind it"):
        httpx.delete(f"{served.url}/v1/requests/{ids[name]}", timeout=30).raise_for_status()
    wait_until(lambda: store.redis.hlen(redis_names.UNACKED) == 1, timeout=60)
    records = {name: store.fetch(request_id) for name, request_id in ids.items()}
    assert {name: record.state for name, record in records.items() if record} == {
        "first": State.RUNNING,
        "shares its prefix": State.CANCELLED,
        "waits behind it": State.CANCELLED,
    }
    first = records["first"]
    assert first is not None
    assert first.seq == 0, "the first prompt was computed meanwhile, so this shows nothing"
