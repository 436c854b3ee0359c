"""``/v1/status``: one look at the whole service, for dashboards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flask import Blueprint, Response, jsonify

from service.runtime import Runtime
from tasks.contract.messages import Timings, Usage
from tasks.store.status import ChildLoad, Finished, ModelLoad, Status


def blueprint(runtime: Runtime) -> Blueprint:
    """The endpoint."""
    routes = Blueprint("status", __name__)

    @routes.get("/v1/status")
    def status() -> Response:
        response = jsonify(_described(runtime.status.read(), runtime.settings.queue_limit))
        response.headers["Cache-Control"] = "no-store"
        return response

    return routes


def _described(status: Status, cap: int) -> dict[str, Any]:
    totals = status.totals
    return {
        "object": "inference.status",
        "time": status.time,
        "models": [_model(load, cap) for load in status.models],
        "children": [_child(load) for load in status.children],
        "totals": {
            "requests": totals.requests,
            "refused": totals.refused,
            "generated_tokens": totals.generated_tokens,
        },
        "recent": [_finished(request) for request in status.recent],
    }


def _model(load: ModelLoad, cap: int) -> dict[str, Any]:
    counts = {"waiting": load.waiting, "cap": cap, "running": load.running}
    return {"id": load.model.name, "n_ctx": load.model.n_ctx, **counts}


def _child(load: ChildLoad) -> dict[str, Any]:
    return {**asdict(load.child), "busy": load.busy}


def _finished(request: Finished) -> dict[str, Any]:
    """Everything but texts: neither the prompt's nor an error's, which may quote it."""
    end = request.end
    usage, timings = end.usage or Usage(0, 0), end.timings or Timings()
    return {
        "id": request.id,
        "model": request.model,
        "state": end.state.value,
        "error": None if end.error is None else end.error.code.value,
        "child": request.child,
        "attempts": timings.attempts if request.child is not None else 0,
        "created": request.created,
        "finished": request.finished,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": timings.cache_n,
        "generated_tokens": usage.completion_tokens,
        "queue_ms": timings.queue_ms,
        "prefill_ms": timings.prompt_ms,
        "decode_ms": timings.predicted_ms,
        "ttft_ms": timings.ttft_ms,
        "itl_ms": timings.itl_ms,
        "itl_p95_ms": timings.itl_p95_ms,
    }
