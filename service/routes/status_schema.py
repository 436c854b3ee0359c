"""What ``/v1/status`` says, as a JSON schema for :mod:`service.routes.openapi_document`."""

from __future__ import annotations

from typing import Any

_TEXT, _COUNT, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_COUNTS = {"type": "object", "additionalProperties": _COUNT}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _listed(properties: dict[str, Any], description: str) -> dict[str, Any]:
    return {"type": "array", "items": _object(properties), "description": description}


_MODEL = {"id": _TEXT, "n_ctx": _COUNT, "waiting": _COUNT, "cap": _COUNT, "running": _COUNT}
_CHILD = {
    "id": _TEXT,
    "worker": _TEXT,
    "pid": _COUNT,
    "model": _TEXT,
    "n_ctx": _COUNT,
    "slots": _COUNT,
    "busy": _COUNT,
    "index": {**_COUNT, "description": "Its number, which a dead child leaves to its replacement."},
    "kernels": {**_TEXT, "description": "Which of llama.cpp's kernels compute, and with what threads."},
    "work": {**_COUNTS, "description": "What the engines of all that had its number have done."},
}
_FINISHED = {
    "id": _TEXT,
    "model": _TEXT,
    "state": {"enum": ["succeeded", "failed", "cancelled", "expired"]},
    "error": _TEXT_OR_NULL,
    "child": {**_TEXT_OR_NULL, "description": "Which child generated it last."},
    "attempts": _COUNT,
    "created": _NUMBER,
    "finished": _NUMBER,
    "prompt_tokens": _COUNT,
    "cached_tokens": _COUNT,
    "generated_tokens": _COUNT,
    **dict.fromkeys(("queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "itl_ms", "itl_p95_ms"), _NUMBER),
}
_TOTALS = {
    "requests": {**_COUNTS, "description": "Finished requests by state."},
    "refused": {**_COUNTS, "description": "Requests not accepted, by the error's code."},
    "generated_tokens": _COUNT,
}

STATUS = _object(
    {
        "object": {"const": "inference.status"},
        "time": {**_NUMBER, "description": "The store's clock in Unix seconds, as are all times here."},
        "models": _listed(_MODEL, "Every model known; cap bounds what may wait."),
        "children": _listed(_CHILD, "The children alive; busy slots are counted at this moment."),
        "totals": {**_object(_TOTALS), "description": "Since the store began, over all processes."},
        "recent": _listed(_FINISHED, "The latest 100 finished requests, newest first, without texts."),
    }
)
