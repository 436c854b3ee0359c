"""``/healthz``, ``/readyz``, ``/health``, ``/v1/models``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flask import Blueprint, Response, jsonify

from service.errors import ApiError
from service.runtime import Runtime
from service.telemetry.loops import SUBMITTING
from tasks.contract.status import Child

#: Maximum number of workers whose last words ``/readyz`` repeats.
MAX_TOLD = 3


def blueprint(runtime: Runtime) -> Blueprint:
    """The endpoints."""
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    def healthz() -> Response:
        return jsonify(status="ok")

    @routes.get("/health")
    def health() -> Response:
        """As llama-server has it: clients ask it whether they can begin."""
        _check_ready(runtime)
        return jsonify(status="ok")

    @routes.get("/readyz")
    def readyz() -> Response:
        _check_ready(runtime)
        children = runtime.catalog.snapshot.children
        troubles = dict.fromkeys((*runtime.board.texts, *_of_workers(children)))
        more = {"troubles": list(troubles)} if troubles else {}
        return jsonify(status="ready", models=sorted({c.model for c in children}), **more)

    @routes.get("/v1/models")
    def models() -> Response:
        return jsonify(object="list", data=[_model(runtime, name) for name in runtime.catalog.names])

    @routes.get("/v1/models/<path:name>")
    def model(name: str) -> Response:
        return jsonify(_model(runtime, runtime.catalog.resolve(name)))

    return routes


def _check_ready(runtime: Runtime) -> None:
    if (reason := _unready(runtime)) is not None:
        raise ApiError(503, "not_ready", reason, retry_after_s=1)


def _unready(runtime: Runtime) -> str | None:
    """The reason why this process can't answer requests now; ``None`` if it can."""
    if runtime.draining.is_set():
        return "This server is shutting down."
    if not (runtime.catalog.snapshot.is_fresh and runtime.subscriber.is_ready):
        return f"The request store can't be used: {runtime.board.text or 'Redis has not answered yet'}."
    trouble = runtime.board.of(SUBMITTING)
    if trouble is not None and not trouble.kind.is_full:  # with a full store, accepted requests still go on
        return f"The request store takes no requests: {trouble.text}."
    if not runtime.catalog.has_children():
        return " ".join(("No worker holds a model yet.", *_ended(runtime)))
    children = runtime.catalog.snapshot.children
    if all(child.trouble for child in children):
        return "No worker can take requests. " + "; ".join(_of_workers(children))
    return None


def _of_workers(children: Iterable[Child]) -> Iterator[str]:
    """What Redis refuses to the workers, each once."""
    yield from dict.fromkeys(f"Worker {child.worker}: {child.trouble}" for child in children if child.trouble)


def _ended(runtime: Runtime) -> Iterator[str]:
    """A sentence for each worker that could not go on, the latest first, with its last words."""
    for words in runtime.read_last_words()[:MAX_TOLD]:
        yield f"Worker {words.worker} ended {words.age_s:.0f} s ago: {words.text}"


def _model(runtime: Runtime, name: str) -> dict[str, Any]:
    known = runtime.catalog.snapshot.models.get(name)
    return {
        "id": name,
        "object": "model",
        "created": 0 if known is None else known.created,
        "owned_by": "concurrent-inference-server",
        "meta": {"n_ctx": runtime.catalog.n_ctx(name)},
    }
