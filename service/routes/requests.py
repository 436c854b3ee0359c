"""``/v1/requests/{id}``: poll, follow and cancel a request, on any API process of any host."""

from __future__ import annotations

import time
from typing import Any, cast

from flask import Blueprint, Response, jsonify, request

from service.admission.jobs import Jobs
from service.errors import ApiError, bad_request, newer_format
from service.routes import exchange
from service.runtime import Runtime
from service.streaming import sse
from service.streaming.answers import Answer
from service.streaming.client_gone import ClientGoneError
from service.telemetry import request_log
from tasks.contract.versions import UnsupportedVersionError
from tasks.store.requests import Record


def blueprint(runtime: Runtime) -> Blueprint:
    """The three endpoints."""
    routes = Blueprint("requests", __name__, url_prefix="/v1/requests")
    jobs = runtime.jobs

    @routes.get("/<request_id>")
    def poll(request_id: str) -> Response:
        prefer = exchange.preferences(runtime.settings.max_wait)
        record = _fetch(jobs, request_id)
        if prefer.wait_s and not record.state.is_final:
            _wait(jobs, request_id, prefer.wait_s)
            record = _fetch(jobs, request_id)
        response = jsonify(_described(runtime, record))
        if not record.state.is_final:
            response.headers["Retry-After"] = "1"
        return exchange.applied(response, prefer)

    @routes.get("/<request_id>/events")
    def events(request_id: str) -> Response:
        record, after = _fetch(jobs, request_id), sse.last_event_id(request.headers.get("Last-Event-ID"))
        if after > record.seq:
            raise bad_request(f"There is no event {after} yet; the last is {record.seq}.", "Last-Event-ID")
        if record.state.is_final:
            jobs.log(record)  # a 404 if it is gone
        return _follow(runtime, record, after)

    @routes.delete("/<request_id>")
    def cancel(request_id: str) -> Response:
        jobs.cancel(request_id, exchange.owner())
        return jsonify(_described(runtime, _fetch(jobs, request_id)))

    return routes


def _fetch(jobs: Jobs, request_id: str) -> Record:
    return jobs.fetch(request_id, exchange.owner())


def _described(runtime: Runtime, record: Record) -> dict[str, Any]:
    """A request as JSON: its state and, once it is over, the answer or the error."""
    answer, error = _outcome(runtime, record) if record.state.is_final else (None, None)
    return {
        "id": record.id,
        "object": "inference.request",
        "status": record.state.value,
        "model": record.model,
        "created": int(record.created),
        "attempts": record.attempt,
        "response": answer,
        "error": error,
    }


def _outcome(runtime: Runtime, record: Record) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The answer to a request that is over, or its error. Raises ``ApiError`` 404 when its log is gone."""
    try:
        answer = _answer(runtime, record)
        events = runtime.jobs.log(record)
    except UnsupportedVersionError as newer:
        return None, newer_format(newer).body["error"]
    try:
        return answer.whole(events), None
    except ApiError as failed:
        return None, failed.body["error"]


def _wait(jobs: Jobs, request_id: str, wait_s: float) -> None:
    deadline, check = time.monotonic() + wait_s, exchange.client_check()
    with jobs.followed(request_id) as listener:
        while not listener.is_over and time.monotonic() < deadline:
            listener.take()
            try:
                check()
            except ClientGoneError:
                raise exchange.client_closed() from None


def _answer(runtime: Runtime, record: Record) -> Answer:
    fingerprint = runtime.catalog.fingerprint(record.model)
    return Answer.to(record.request, record.created, with_usage=True, fingerprint=fingerprint)


def _follow(runtime: Runtime, record: Record, after: int) -> Response:
    # Start with the event that the client has: if it is the last, its closing chunks may have been lost.
    following = runtime.jobs.followed(record.id, max(0, after - 1))
    listener = following.__enter__()
    request_log.present().model = record.model
    request_log.present().follow(listener)
    stream = sse.EventStream(
        _answer(runtime, record),
        listener,
        exchange.client_check(),
        runtime.settings.heartbeat,
        after,
    )
    response = Response(cast("list[bytes]", stream), headers=sse.HEADERS)
    response.call_on_close(lambda: following.__exit__(None, None, None))
    return response
