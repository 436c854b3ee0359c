"""Two API keys: neither reads, follows or cancels what the other one asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from redis import Redis

from tasks.contract import redis_names
from tests.integration.http_rig import Api, ScriptedWorker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

OURS, THEIRS = {"Authorization": "Bearer ours"}, {"Authorization": "Bearer theirs"}


@pytest.fixture(scope="module")
def keyed(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, api_keys="ours,theirs")
    served.wait_ready()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def keyless(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    """An operator's API process, on the same Valkey."""
    served = Api(valkey_url)
    served.wait_ready()
    yield served
    served.stop()


def post(api: Api, prompt: str, headers: dict[str, str], prefer: str = "respond-async") -> httpx.Response:
    body = {"prompt": prompt}
    answer = api.http.post("/v1/completions", json=body, headers={**headers, "Prefer": prefer})
    answer.raise_for_status()
    return answer


def finished(api: Api, headers: dict[str, str] = OURS) -> str:
    return str(post(api, "secret words", headers, "").json()["id"])


def routes(api: Api) -> list[tuple[str, str]]:
    """Every method and path with a request's id."""
    paths: dict[str, Any] = api.http.get("/openapi.json").json()["paths"]
    return [
        (method, path)
        for path, methods in paths.items()
        if path.startswith("/v1/requests/")
        for method in methods
        if method in ("get", "post", "put", "patch", "delete")
    ]


def test_every_route_knows_only_its_own_keys_requests(keyed: Api, worker: ScriptedWorker) -> None:
    running = str(post(keyed, "hold", OURS).json()["id"])
    wait_until(lambda: running in worker.held)
    asked = routes(keyed)
    assert len(asked) >= 3
    for request_id in (finished(keyed), running):
        for method, path in asked:
            url = path.replace("{id}", request_id)
            other = keyed.http.request(method, url, headers=THEIRS)
            unknown = keyed.http.request(method, path.replace("{id}", "x" * len(request_id)), headers=THEIRS)
            assert other.status_code == unknown.status_code == 404
            assert other.json()["error"]["code"] == "request_not_found"
            assert other.text.replace(request_id, "") == unknown.text.replace("x" * len(request_id), "")
    worker.finish(running)
    assert keyed.http.get(f"/v1/requests/{running}", headers=OURS).json()["status"] == "succeeded"


def test_a_key_has_its_own(keyed: Api, worker: ScriptedWorker) -> None:
    mine = finished(keyed)
    assert keyed.http.get(f"/v1/requests/{mine}", headers=OURS).status_code == 200
    assert "secret" in keyed.http.get(f"/v1/requests/{mine}/events", headers=OURS).text
    waits = str(post(keyed, "silent", OURS).json()["id"])
    assert keyed.http.delete(f"/v1/requests/{waits}", headers=OURS).json()["status"] == "cancelled"


def test_an_operator_sees_all_and_what_had_no_owner_is_everybodys(
    keyed: Api, keyless: Api, redis_url_client: Redis
) -> None:
    mine = finished(keyed)
    assert keyless.http.get(f"/v1/requests/{mine}").status_code == 200
    free = finished(keyless)
    assert keyed.http.get(f"/v1/requests/{free}", headers=OURS).status_code == 200
    redis_url_client.hdel(redis_names.record(free), "owner")  # as the last release wrote it
    assert keyed.http.get(f"/v1/requests/{free}", headers=THEIRS).status_code == 200


@pytest.fixture
def redis_url_client(valkey_url: str) -> Iterator[Redis]:
    """A client of the server that the API processes use, as they left it."""
    with Redis.from_url(valkey_url) as client:
        yield client


def test_ids_of_others_are_not_told(keyed: Api, keyless: Api) -> None:
    mine, other = finished(keyed), finished(keyed, THEIRS)

    def listed(api: Api, headers: dict[str, str]) -> list[str]:
        return [str(each["id"]) for each in api.http.get("/v1/status", headers=headers).json()["recent"][:2]]

    assert listed(keyless, {}) == [other, mine]
    told = listed(keyed, OURS)
    assert told[1] == mine
    assert told[0].startswith("hidden-")
    assert told == listed(keyed, OURS)
    assert other not in keyed.http.get("/v1/status", headers=OURS).text
    assert keyed.http.get(f"/v1/requests/{told[0]}", headers=OURS).status_code == 404


def test_idempotency_keys_belong_to_an_api_key(keyed: Api) -> None:
    answers = [
        keyed.http.post(
            "/v1/completions", json={"prompt": prompt}, headers={**headers, "Idempotency-Key": "same"}
        )
        for headers, prompt in ((OURS, "a"), (THEIRS, "b"), (OURS, "a"))
    ]
    assert [answer.json()["choices"][0]["text"] for answer in answers] == ["a", "b", "a"]
    assert answers[0].json()["id"] == answers[2].json()["id"] != answers[1].json()["id"]


def test_no_key_is_kept(keyed: Api, redis_url_client: Redis) -> None:
    mine = finished(keyed)
    owner = redis_url_client.hget(redis_names.record(mine), "owner")
    assert isinstance(owner, bytes)
    assert len(owner) == 32
    for key in redis_url_client.keys("*"):
        assert b"ours" not in (redis_url_client.dump(key) or b"")
