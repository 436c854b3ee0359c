"""A real API process whose Valkey refuses or goes silent: it says what is wrong, and goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.contract import redis_names
from tests.chaos.forms import SILENCES
from tests.chaos.proxy import Proxy, Way
from tests.integration.http_rig import Api, ScriptedWorker
from tests.integration.refusing import Refusing, refusing
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

#: Seconds after which an API process that waits must have gone on.
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def valkey() -> Iterator[Refusing]:
    with refusing() as made:
        yield made


@pytest.fixture(scope="module")
def scripted(valkey: Refusing) -> Iterator[ScriptedWorker]:
    worker = ScriptedWorker(valkey.admin_url)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def api(
    valkey: Refusing, scripted: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    served = Api(valkey.url, tmp_path_factory.mktemp("api") / "log", first_event_timeout=1)
    served.wait_ready()
    yield served
    served.stop()


def kinds(api: Api) -> set[str]:
    """The kinds of trouble in the API's metrics."""
    lines = api.http.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("inference_store_trouble{") and line.endswith(" 1.0")]
    return {line.split('"')[1] for line in found}


def is_whole(api: Api) -> bool:
    return api.status("/readyz") == 200 and not kinds(api)


@pytest.mark.parametrize(
    ("refuse", "kind", "code", "told"),
    [
        (Refusing.full, "full", "store_full", "maxmemory"),
        (Refusing.too_few_replicas, "too_few_replicas", "store_unavailable", "min-replicas-to-write"),
        (lambda valkey: valkey.without("-lpush"), "no_permission", "store_unavailable", "+lpush"),
        (lambda valkey: valkey.without("-evalsha"), "no_permission", "store_unavailable", "+evalsha"),
        (lambda valkey: valkey.foreign("inference.scripted"), "wrong_type", "store_unavailable", "WRONGTYPE"),
    ],
    ids=["full", "too few replicas", "no LPUSH", "no EVALSHA", "a foreign queue"],
)
def test_what_redis_refuses_is_told_and_over_by_itself(
    refuse: Callable[..., object],
    kind: str,
    code: str,
    told: str,
    api: Api,
    scripted: ScriptedWorker,
    valkey: Refusing,
) -> None:
    with scripted.paused(), refuse(valkey):  # type: ignore[attr-defined]
        answer = api.complete("a b")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
        assert told in answer.json()["error"]["message"]
        assert kind in kinds(api)
        wait_until(lambda: told in api.http.get("/readyz").text, timeout=PATIENCE_S)
        assert api.status("/readyz") == (200 if kind == "full" else 503)
    wait_until(lambda: is_whole(api), timeout=PATIENCE_S)
    assert api.complete("a b").status_code == 200


@pytest.mark.parametrize("rule", ["resetchannels", "-subscribe"])
def test_a_subscription_that_is_refused_is_told_by_name(rule: str, api: Api, valkey: Refusing) -> None:
    with valkey.without(rule):
        valkey.disconnect()
        wait_until(lambda: "no_permission" in kinds(api), timeout=PATIENCE_S)
        assert "grant it with ACL SETUSER" in api.http.get("/readyz").text
    wait_until(lambda: is_whole(api), timeout=PATIENCE_S)
    assert api.complete("a b").status_code == 200


def test_another_password_is_told_by_name(api: Api, valkey: Refusing) -> None:
    with valkey.wrong_password():
        wait_until(lambda: "WRONGPASS" in api.http.get("/readyz").text, timeout=PATIENCE_S)
        assert api.status("/readyz") == 503
        assert api.complete("a b").json()["error"]["code"] == "store_unavailable"
    wait_until(lambda: is_whole(api), timeout=PATIENCE_S)
    assert api.complete("a b").status_code == 200


def test_one_loop_that_is_refused_stops_no_other(api: Api, valkey: Refusing) -> None:
    with valkey.foreign(redis_names.OUTCOMES):
        wait_until(lambda: "wrong_type" in kinds(api), timeout=PATIENCE_S)
        ready = api.http.get("/readyz")
        assert ready.status_code == 200
        [trouble] = ready.json()["troubles"]
        assert "inference:outcomes is a string and should be a list" in trouble
    wait_until(lambda: is_whole(api), timeout=PATIENCE_S)


def test_workers_troubles_are_told(api: Api, scripted: ScriptedWorker) -> None:
    scripted.trouble = "Redis refuses it"
    wait_until(lambda: "Worker w: Redis refuses it" in api.http.get("/readyz").text, timeout=PATIENCE_S)
    assert api.status("/readyz") == 503
    scripted.trouble = ""
    wait_until(lambda: is_whole(api), timeout=PATIENCE_S)


# ---- silence ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ways", "silence_s"), SILENCES)
def test_an_api_goes_on_after_a_silence(
    ways: tuple[Way, ...], silence_s: int, valkey: Refusing, scripted: ScriptedWorker, tmp_path: Path
) -> None:
    proxy = Proxy(("127.0.0.1", valkey.port))
    api = Api(valkey.url.replace(str(valkey.port), str(proxy.port)), tmp_path / "log")
    try:
        api.wait_ready()
        assert api.complete("a b").status_code == 200
        proxy.swallow(ways)
        load = [api.later(api.complete, "a b") for _ in range(8)]
        time.sleep(silence_s)  # the length of the silence
        proxy.release()
        began = time.monotonic()
        wait_until(lambda: api.complete("a b").status_code == 200 and is_whole(api), timeout=PATIENCE_S)
        print(f"after {silence_s} s of silence: {time.monotonic() - began:.1f} s")
        assert {each.result().status_code for each in load} <= {200, 503}
    finally:
        api.stop()
        proxy.close()


@pytest.mark.chaos
def test_an_api_goes_on_after_the_silence_of_each_connection(
    valkey: Refusing, scripted: ScriptedWorker, tmp_path: Path
) -> None:
    proxy = Proxy(("127.0.0.1", valkey.port))
    api = Api(valkey.url.replace(str(valkey.port), str(proxy.port)), tmp_path / "log")
    try:
        api.wait_ready()
        load = [api.later(api.complete, "a b") for _ in range(3)]
        assert {each.result().status_code for each in load} == {200}
        for port in proxy.ports:  # a dead connection stays silent; new ones live
            proxy.swallow(only=[port])
            began = time.monotonic()
            wait_until(lambda: port not in proxy.ports or time.monotonic() - began > 7)  # noqa: B023
            wait_until(lambda: api.complete("a b").status_code == 200 and is_whole(api), timeout=PATIENCE_S)
            stream = api.complete("a b", stream=True)
            assert stream.text.endswith("data: [DONE]\n\n")
    finally:
        api.stop()
        proxy.close()
