"""The API's log: a real gunicorn, a real Valkey; only the worker is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.telemetry.request_log import HEADER
from tests.integration.http_rig import MODEL, Api, ScriptedWorker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

SECRET = "xyzzy"


class Logged:
    """An API process and what it logged."""

    def __init__(self, url: str, log: Path, **settings: Any) -> None:
        self.path = log
        self.api = Api(url, log=log, log_format="json", first_event_timeout=1, **settings)
        self.api.wait_ready()

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines, each of which must be a JSON object."""
        whole = self.path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def line_of(self, request_id: str | None) -> dict[str, Any]:
        """The one line of an HTTP request, when it is there."""
        found = wait_until(
            lambda: [x for x in self.lines() if x["event"] == "request" and x["id"] == request_id]
        )
        assert len(found) == 1
        return found[0]


@pytest.fixture(scope="module")
def logged(
    valkey_url: str, worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Logged]:
    served = Logged(valkey_url, tmp_path_factory.mktemp("log") / "api.log", queue_limit=1)
    yield served
    assert served.api.stop() == 0


def test_an_answer_is_one_line(logged: Logged):
    answer = logged.api.complete(f"{SECRET} and more")
    assert answer.status_code == 200
    assert answer.headers[HEADER] == answer.json()["id"]
    line = logged.line_of(answer.json()["id"])
    known = {"level": "info", "method": "POST", "path": "/v1/completions", "status": 200, "model": MODEL}
    assert {name: line[name] for name in known} == known
    assert (line["outcome"], line["tokens"], line["prompt_tokens"], line["attempts"]) == (
        "succeeded",
        3,
        5,
        1,
    )
    assert line["ttft_ms"] == 2.0
    assert line["e2e_ms"] >= line["queue_ms"] > 0


def test_a_stream_is_one_line_when_it_is_complete(logged: Logged):
    answer = logged.api.complete(f"{SECRET} and more", stream=True)
    line = logged.line_of(answer.headers[HEADER])
    assert (line["outcome"], line["tokens"]) == ("succeeded", 3)
    assert line["id"] in answer.text


def test_a_client_that_leaves(logged: Logged, worker: ScriptedWorker):
    body = {"prompt": "hold", "stream": True}
    with logged.api.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_raw())
    assert logged.line_of(response.headers[HEADER])["outcome"] == "cut"


def test_errors(logged: Logged, worker: ScriptedWorker):
    answer = logged.api.complete("fail attempts_exhausted")
    line = logged.line_of(answer.headers[HEADER])
    assert (line["level"], line["status"]) == ("warning", 500)
    assert (line["outcome"], line["error"]) == ("failed", "attempts_exhausted")
    answer = logged.api.complete(SECRET, temperature=-1)
    line = logged.line_of(answer.headers[HEADER])
    assert (line["level"], line["status"], line["error"]) == ("info", 400, "invalid_value")


def test_a_full_queue_and_a_request_for_later(logged: Logged, worker: ScriptedWorker):
    with worker.paused():
        waiting = logged.api.submit("hello")
        refused = logged.api.complete("hello")
        line = logged.line_of(refused.headers[HEADER])
        assert (line["status"], line["outcome"], line["error"]) == (429, "refused", "queue_full")
    assert logged.line_of(waiting)["outcome"] == "queued"


def test_other_paths_and_probes(logged: Logged):
    path = "/v1/nothing%0Alevel=error"
    missing = logged.api.http.get(path)
    assert logged.line_of(missing.headers[HEADER])["path"] == "/v1/nothing\nlevel=error"
    poll = logged.api.http.get("/v1/requests/none")
    assert (poll.headers[HEADER], logged.line_of("none")["status"]) == ("none", 404)
    assert not [line for line in logged.lines() if line.get("path") == "/readyz"]


def test_no_prompt_and_no_answer_is_logged(logged: Logged):
    done = logged.api.complete(SECRET, stop=[SECRET + "stop"])
    logged.line_of(done.headers[HEADER])
    assert SECRET not in logged.path.read_text()


def test_prompts_and_levels_when_asked(valkey_url: str, worker: ScriptedWorker, tmp_path: Path):
    served = Logged(valkey_url, tmp_path / "log", log_prompts=True, log_level="debug")
    answer = served.api.complete(SECRET)
    assert served.line_of(answer.headers[HEADER])["prompt"] == SECRET
    messages = [{"role": "user", "content": SECRET}]
    chat = served.api.http.post("/v1/chat/completions", json={"messages": messages})
    assert served.line_of(chat.headers[HEADER])["prompt"] == [["user", SECRET]]
    wait_until(lambda: [line for line in served.lines() if line.get("path") == "/readyz"])
    assert served.api.stop() == 0


def test_text_stays_on_its_line(valkey_url: str, worker: ScriptedWorker, tmp_path: Path):
    api = Api(valkey_url, log=tmp_path / "log", log_level="info")
    api.wait_ready()
    answer = httpx.get(f"{api.url}/v1/nothing%0Aevil")
    found = wait_until(lambda: [x for x in (tmp_path / "log").read_text().splitlines() if "evil" in x])
    assert f"id={answer.headers[HEADER]}" in found[0]
    assert "status=404" in found[0]
    assert api.stop() == 0
