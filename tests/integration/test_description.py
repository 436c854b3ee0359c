"""Real answers are as ``/openapi.json`` says: every field has its type, and there is no other field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from service.routes.description import answer_types as answers
from tests.integration.http_rig import MODEL, Api, ScriptedWorker

pytestmark = pytest.mark.integration

CHAT = {"messages": [{"role": "user", "content": "a b c"}]}


@pytest.fixture(scope="module")
def api(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url)
    served.wait_ready()
    yield served
    served.stop()


def conforms(kind: type[BaseModel], answer: Any) -> bool:
    """Whether an answer has the fields of a type, and no others."""
    return bool(
        kind.model_validate_json(json.dumps(answer)).model_dump(mode="json", exclude_unset=True) == answer
    )


def chunks(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize(
    ("path", "body", "whole", "chunk"),
    [
        ("/v1/chat/completions", CHAT, answers.ChatCompletion, answers.ChatCompletionChunk),
        ("/v1/completions", {"prompt": "a b c"}, answers.Completion, answers.CompletionChunk),
    ],
)
def test_answers_to_prompts(
    api: Api, path: str, body: dict[str, Any], whole: type[BaseModel], chunk: type[BaseModel]
) -> None:
    assert conforms(whole, api.http.post(path, json=body).json())
    for options in (None, {"include_usage": True}):
        streamed = api.http.post(path, json={**body, "stream": True, "stream_options": options})
        found = chunks(streamed.text)
        assert len(found) > 3
        assert all(conforms(chunk, each) for each in found)
    accepted = api.http.post(path, json=body, headers={"Prefer": "respond-async"}).json()
    assert conforms(answers.AcceptedRequest, accepted)
    place = f"/v1/requests/{accepted['id']}"
    polled = api.http.get(place, headers={"Prefer": "wait=30"}).json()
    assert polled["response"]
    assert conforms(answers.Request, polled)
    assert all(conforms(chunk, each) for each in chunks(api.http.get(f"{place}/events").text))


def test_answers_about_requests_that_fail(api: Api) -> None:
    request_id = api.submit("silent")
    assert conforms(answers.Request, api.http.get(f"/v1/requests/{request_id}").json())
    assert conforms(answers.Request, api.http.delete(f"/v1/requests/{request_id}").json())
    for answer in (api.complete("fail internal_error"), api.complete(""), api.http.get("/nowhere")):
        assert answer.is_error
        assert conforms(answers.Error, answer.json())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/models", answers.ModelList),
        (f"/v1/models/{MODEL}", answers.Model),
        ("/healthz", answers.Health),
        ("/health", answers.Health),
        ("/readyz", answers.Readiness),
    ],
)
def test_other_answers(api: Api, path: str, kind: type[BaseModel]) -> None:
    assert conforms(kind, api.http.get(path).json())


def test_every_route_is_described_and_every_answer_typed(api: Api) -> None:
    document = api.http.get("/openapi.json").json()
    schemas, paths = document["components"]["schemas"], document["paths"]
    assert {kind.__name__ for kind in answers.ALL} <= set(schemas)
    assert set(paths) == {
        *("/v1/chat/completions", "/v1/completions", "/v1/requests/{id}", "/v1/requests/{id}/events"),
        *("/v1/models", "/v1/models/{id}", "/v1/status", "/healthz", "/health", "/readyz", "/metrics"),
        "/openapi.json",
    }
    for name, path in paths.items():
        for method in path.keys() - {"parameters"}:
            for answer in path[method]["responses"].values():
                for content in answer["content"].values():
                    assert content["schema"] != {"type": "object"} or name == "/openapi.json"
    assert references(document) <= set(schemas)


def references(value: Any) -> set[str]:
    """The names of all schemas that are referred to."""
    if isinstance(value, list):
        return {name for each in value for name in references(each)}
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"].rpartition("/")[2]} if "$ref" in value else set()
    return own | {name for each in value.values() for name in references(each)}
