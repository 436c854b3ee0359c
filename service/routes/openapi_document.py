"""The API's OpenAPI 3.1 description, made from the models that check the bodies."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from service.intake.schemas import ChatBody, CompletionBody
from tasks.contract.status import Status

_REF = "#/components/schemas/{model}"


def document() -> dict[str, Any]:
    """The whole description."""
    bodies = [(ChatBody, "validation"), (CompletionBody, "validation")]
    _, definitions = models_json_schema(bodies, ref_template=_REF)  # type: ignore[arg-type]
    status = TypeAdapter(Status).json_schema(mode="serialization", ref_template=_REF)
    kinds = status.pop("$defs")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Concurrent Inference Server", "version": _version()},
        "paths": _paths(),
        "security": [{}, {"key": []}],  # a key is needed only if the server has any
        "components": {
            "schemas": {
                **definitions["$defs"],
                **kinds,
                "Request": _REQUEST,
                "Status": status,
                "Error": _ERROR,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> dict[str, Any]:
    return {
        "/v1/chat/completions": {"post": _generate("Answer a conversation", "ChatBody")},
        "/v1/completions": {"post": _generate("Continue a text", "CompletionBody")},
        "/v1/requests/{id}": {
            "parameters": [_ID],
            "get": _operation(
                "Poll a request", {"200": _json("Its state and its answer", "Request")}, [_PREFER]
            ),
            "delete": _operation("Cancel a request", {"200": _json("Its state", "Request")}),
        },
        "/v1/requests/{id}/events": {
            "parameters": [_ID],
            "get": _operation("Stream a request's answer", {"200": _STREAM}, [_LAST_EVENT_ID]),
        },
        "/v1/models": {"get": _operation("List the models", {"200": _json("OpenAI's list")})},
        "/v1/status": {
            "get": _operation("Look at the whole service", {"200": _json("The current state", "Status")})
        },
        "/healthz": {"get": _operation("Whether the process lives", {"200": _json("The process lives")})},
        "/readyz": {
            "get": _operation("Whether a worker holds a model", {"200": _json("A worker holds a model")})
        },
        "/metrics": {"get": _operation("Figures for Prometheus", {"200": {"description": "Text format"}})},
    }


def _version() -> str:
    try:
        return version("concurrent-inference-server")
    except PackageNotFoundError:
        return "0"


def _json(description: str, schema: str | None = None) -> dict[str, Any]:
    content = {"schema": {"type": "object"} if schema is None else {"$ref": _REF.format(model=schema)}}
    return {"description": description, "content": {"application/json": content}}


def _operation(
    summary: str, responses: dict[str, Any], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    errors = {"default": _json("An error in OpenAI's shape", "Error")}
    return {"summary": summary, "parameters": parameters or [], "responses": {**responses, **errors}}


def _generate(summary: str, schema: str) -> dict[str, Any]:
    answer = _json("The answer, whole or as server-sent events")
    answer["content"].update(_STREAM["content"])
    responses = {
        "200": answer,
        "202": {**_json("Accepted; poll its Location", "Request"), "headers": {"Location": _TEXT_HEADER}},
        "422": _json("The Idempotency-Key was used with another body", "Error"),
        "429": {**_json("The queue is full", "Error"), "headers": {"Retry-After": _TEXT_HEADER}},
    }
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": _REF.format(model=schema)}}},
    }
    return {**_operation(summary, responses, [_PREFER, _IDEMPOTENCY_KEY]), "requestBody": body}


_TEXT_HEADER = {"schema": {"type": "string"}}
_STREAM = {
    "description": "Chunks as server-sent events, then [DONE]",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
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
_NULLABLE_OBJECT = {"type": ["object", "null"]}
_REQUEST = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "inference.request"},
        "status": {"enum": ["queued", "running", "succeeded", "failed", "cancelled", "expired"]},
        "model": {"type": "string"},
        "created": {"type": "integer", "description": "Unix seconds."},
        "attempts": {"type": "integer"},
        "response": _NULLABLE_OBJECT,
        "error": _NULLABLE_OBJECT,
    },
    "required": ["id", "object", "status", "model"],
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
