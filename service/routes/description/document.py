"""The API's OpenAPI 3.1 description, made from the models that check the bodies."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from service.intake.schemas import ChatBody, CompletionBody
from service.routes.description import answer_types
from tasks.contract.status import Status

_REF = "#/components/schemas/{model}"


def document() -> dict[str, Any]:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Concurrent Inference Server", "version": _version()},
        "paths": _paths(),
        "security": [{}, {"key": []}],  # a key is needed only if the server has any
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas() -> dict[str, Any]:
    described = [(kind, "validation") for kind in (ChatBody, CompletionBody, *answer_types.ALL)]
    _, definitions = models_json_schema(described, ref_template=_REF)  # type: ignore[arg-type]
    status = TypeAdapter(Status).json_schema(mode="serialization", ref_template=_REF)
    return {**definitions["$defs"], **status.pop("$defs"), "Status": status}


def _paths() -> dict[str, Any]:
    return {
        "/v1/chat/completions": {
            "post": _generate("Answer a conversation", "ChatBody", "ChatCompletion", "ChatCompletionChunk")
        },
        "/v1/completions": {
            "post": _generate("Continue a text", "CompletionBody", "Completion", "CompletionChunk")
        },
        **_request_paths(),
        "/v1/models": {"get": _answers("List the models", "ModelList")},
        "/v1/models/{id}": {"parameters": [_ID], "get": _answers("Describe a model", "Model")},
        "/v1/status": {"get": _answers("Look at the whole service", "Status")},
        "/healthz": {"get": _answers("Whether the process lives", "Health")},
        "/health": {"get": _answers("Whether a worker holds a model, as llama-server says it", "Health")},
        "/readyz": {"get": _answers("Whether a worker holds a model", "Readiness")},
        "/metrics": {"get": _operation("Figures for Prometheus", {"200": _METRICS})},
        "/openapi.json": {"get": _operation("This description", {"200": _json("OpenAPI 3.1")})},
    }


def _request_paths() -> dict[str, Any]:
    poll = _operation("Poll a request", {"200": _json("Its state and its answer", "Request")}, [_PREFER])
    stream = _operation(
        "Stream a request's answer",
        {"200": _stream("ChatCompletionChunk", "CompletionChunk")},
        [_LAST_EVENT_ID],
    )
    return {
        "/v1/requests/{id}": {
            "parameters": [_ID],
            "get": poll,
            "delete": _answers("Cancel a request", "Request"),
        },
        "/v1/requests/{id}/events": {"parameters": [_ID], "get": stream},
    }


def _version() -> str:
    try:
        return version("concurrent-inference-server")
    except PackageNotFoundError:
        return "0"


def _json(description: str, schema: str | None = None) -> dict[str, Any]:
    content = {"schema": {"type": "object"} if schema is None else _ref(schema)}
    return {"description": description, "content": {"application/json": content}}


def _ref(schema: str) -> dict[str, Any]:
    return {"$ref": _REF.format(model=schema)}


def _stream(*chunks: str) -> dict[str, Any]:
    """Server-sent events; the schema is that of an event's data, as in OpenAI's own description."""
    kinds = [_ref(chunk) for chunk in chunks]
    schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {
        "description": "Server-sent events, each with a chunk as its data, the last with [DONE]",
        "content": {"text/event-stream": {"schema": schema}},
    }


def _answers(summary: str, schema: str) -> dict[str, Any]:
    return _operation(summary, {"200": _json(summary, schema)})


def _operation(
    summary: str, responses: dict[str, Any], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    errors = {"default": _json("An error in OpenAI's shape", "Error")}
    return {"summary": summary, "parameters": parameters or [], "responses": {**responses, **errors}}


def _generate(summary: str, body: str, answer: str, chunk: str) -> dict[str, Any]:
    whole = _json("The answer, whole or as server-sent events", answer)
    whole["content"].update(_stream(chunk)["content"])
    retry_later = {"headers": {"Retry-After": _TEXT_HEADER}}
    responses = {
        "200": whole,
        "202": {
            **_json("Accepted; poll its Location", "AcceptedRequest"),
            "headers": {"Location": _TEXT_HEADER},
        },
        "422": _json("The Idempotency-Key was used with another body", "Error"),
        "429": {**_json("The queue is full, or this server is busy", "Error"), **retry_later},
    }
    content = {"application/json": {"schema": _ref(body)}}
    operation = _operation(summary, responses, [_PREFER, _IDEMPOTENCY_KEY])
    return {**operation, "requestBody": {"required": True, "content": content}}


_TEXT_HEADER = {"schema": {"type": "string"}}
_METRICS = {
    "description": "Prometheus' text format",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "schema": {"type": "string"},
    "description": "respond-async: answer 202 at once. wait=N: when posting, wait up to N seconds for a "
    "place in a full queue; when polling, for the end.",
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": 255},
    "description": "The client's own name for the request: sent again with the same body, it is answered "
    "from the first one, running or finished. The request continues when the connection closes.",
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "integer"},
    "description": "The id of the last event received; the stream goes on after it.",
}
