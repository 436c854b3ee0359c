"""``/v1/status`` and the page's files, over a real gunicorn and Valkey; only the worker is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.http_rig import MODEL, N_CTX, Api, ScriptedWorker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

LIMIT = 2


@pytest.fixture(scope="module")
def api(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, queue_limit=LIMIT, api_workers=2)
    served.wait_ready()
    yield served
    served.stop()


def status(api: Api) -> dict[str, Any]:
    answer = api.http.get("/v1/status")
    assert answer.headers["Cache-Control"] == "no-store"
    return dict(answer.json())


def conforms(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    """Whether ``value`` has exactly the fields of its schema, at every depth."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        known: dict[str, Any] = schema["properties"]
        return set(value) == set(known) and all(conforms(value[name], known[name], schemas) for name in known)
    if "items" in schema:
        return all(conforms(each, schema["items"], schemas) for each in value)
    return True


def test_everything_is_counted_once(api: Api, worker: ScriptedWorker) -> None:
    assert api.complete("a b c").status_code == 200
    assert api.complete("fail internal_error").status_code == 500
    held = api.submit("hold secret words")
    wait_until(lambda: held in worker.held)
    with worker.paused():
        for _ in range(LIMIT):
            api.submit("a")
        assert [api.complete("x").status_code for _ in range(3)] == [429] * 3
        found = status(api)
        assert found["models"] == [
            {"id": MODEL, "n_ctx": N_CTX, "waiting": LIMIT, "cap": LIMIT, "running": 1}
        ]
        [child] = found["children"]
        assert (child["id"], child["slots"], child["busy"]) == ("w/1", 16, 1)
    api.http.delete(f"/v1/requests/{held}")
    wait_until(lambda: status(api)["totals"]["refused"] == {"queue_full": 3})
    wait_until(lambda: len(status(api)["recent"]) == 5)
    totals = status(api)["totals"]
    assert totals["requests"] == {"succeeded": 3, "failed": 1, "cancelled": 1}
    assert totals["generated_tokens"] == 3 + 1 + 2  # "a b c", the held one's "one", twice "a"


def test_recent_requests_are_without_texts(api: Api, worker: ScriptedWorker) -> None:
    known = {each["id"] for each in status(api)["recent"]}
    api.complete("fail invalid_prompt")
    api.complete("secret words")
    answer = api.http.get("/v1/status")
    latest, failed, *_ = (each for each in answer.json()["recent"] if each["id"] not in known)
    assert (failed["state"], failed["error"]) == ("failed", "invalid_prompt")
    assert (latest["state"], latest["child"], latest["attempts"]) == ("succeeded", "w/1", 1)
    assert (latest["generated_tokens"], latest["prompt_tokens"], latest["ttft_ms"]) == (2, 5, 2.0)
    assert latest["created"] < latest["finished"]
    assert "secret" not in answer.text
    assert "as asked" not in answer.text


def test_the_latest_hundred_are_kept(api: Api, worker: ScriptedWorker) -> None:
    for _ in range(105):
        last = api.complete("a").json()["id"]
    recent = status(api)["recent"]
    assert len(recent) == 100
    assert recent[0]["id"] == last


def test_the_description_is_true(api: Api) -> None:
    schemas = api.http.get("/openapi.json").json()["components"]["schemas"]
    found = status(api)
    assert found["recent"]
    assert conforms(found, schemas["Status"], schemas)


def test_the_page_is_strict_and_cached(api: Api) -> None:
    page = api.http.get("/")
    policy = dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-cache"
    again = api.http.get("/", headers={"If-None-Match": page.headers["ETag"]})
    assert again.status_code == 304
    source = page.text.partition('type="module" src="')[2].partition('"')[0]
    script = api.http.get(f"/{source}")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["Cache-Control"]
    other = api.http.get("/assets/000000000000/main.js")
    assert (other.status_code, other.headers["Cache-Control"]) == (200, "no-store")
    assert api.http.get("/assets/x/../../wsgi.py").status_code == 404
    assert api.http.get("/assets/x/no.js").status_code == 404
