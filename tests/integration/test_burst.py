"""Hundreds of clients at the same moment, on a Redis that answers slowly; only the kinds of answers count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from redis import Redis

from loadtest.burst import Answer, burst, report
from tests.chaos.proxy import Proxy
from tests.integration.http_rig import Api, ScriptedWorker

pytestmark = pytest.mark.integration

CLIENTS, LIMIT = 300, 64
FULL, BUSY, AWAY = "429 queue_full", "429 overloaded", "503 store_unavailable"


@pytest.fixture
def slow(valkey_url: str) -> Iterator[Proxy]:
    """Passes on to Valkey, as late as its ``delay_s`` says."""
    place = urlsplit(valkey_url)
    proxy = Proxy((place.hostname or "", place.port or 0))
    yield proxy
    proxy.close()


@pytest.fixture
def api(slow: Proxy, worker: ScriptedWorker, valkey_url: str) -> Iterator[Api]:
    with Redis.from_url(valkey_url) as client:
        client.flushall()
    worker.introduce()
    served = Api(f"redis://127.0.0.1:{slow.port}/0", queue_limit=LIMIT)
    served.wait_ready()
    yield served
    slow.release()
    served.stop()


def kinds(answers: list[Answer]) -> Counter[str]:
    return Counter(answer.kind for answer in answers)


def submit_all(api: Api, **fields: Any) -> list[Answer]:
    return asyncio.run(burst(api.url, CLIENTS, 60.0, **fields))


def test_as_many_as_the_cap_are_accepted_and_the_others_told_that_it_is_full(
    api: Api, slow: Proxy, worker: ScriptedWorker
) -> None:
    slow.delay_s = 0.3
    with worker.paused():
        answers = submit_all(api)
        assert kinds(answers) == {"202": LIMIT, FULL: CLIENTS - LIMIT}
        assert worker.num_waiting == LIMIT
    assert len(list(report(answers))) == 2


def test_a_full_queue_is_known_without_asking(
    api: Api, slow: Proxy, worker: ScriptedWorker, valkey_url: str
) -> None:
    """Redis answers one request in a second; hundreds are refused for a few questions."""
    with worker.paused(), Redis.from_url(valkey_url) as client:
        submit_all(api)
        client.config_resetstat()
        assert kinds(submit_all(api)) == {FULL: CLIENTS}
        asked: Any = client.info("commandstats")
        assert asked["cmdstat_evalsha"]["calls"] < CLIENTS / 4


def test_only_redis_that_is_away_is_said_to_be(api: Api, slow: Proxy) -> None:
    slow.refuse()
    assert kinds(submit_all(api)) == {AWAY: CLIENTS}


def test_no_free_connection_is_no_absent_redis(api: Api, slow: Proxy, worker: ScriptedWorker) -> None:
    request_id = api.submit("hold")
    slow.delay_s = 1.0

    async def poll_all() -> list[str]:
        async with httpx.AsyncClient(base_url=api.url, timeout=60, limits=httpx.Limits()) as client:
            found = await asyncio.gather(*(client.get(f"/v1/requests/{request_id}") for _ in range(CLIENTS)))
        return [
            f"{each.status_code} {each.json()['error']['code']}" if each.is_error else "200" for each in found
        ]

    found = Counter(asyncio.run(poll_all()))
    assert set(found) == {"200", BUSY}
    slow.release()
    worker.finish(request_id)
