"""``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from flask import Blueprint, Response, jsonify

from service.admission.jobs import Submission
from service.errors import shutting_down
from service.intake.prefer import Prefer
from service.intake.schemas import ChatBody, CompletionBody, GenerateBody, Limits, to_request, validate
from service.routes import exchange
from service.runtime import Runtime
from service.streaming import sse
from service.streaming.answers import Answer
from service.streaming.client_gone import ClientGoneError
from service.streaming.listener import Listener
from service.telemetry import request_log
from tasks.contract.messages import GenerateRequest
from tasks.queue.submit import Admission


def blueprint(runtime: Runtime) -> Blueprint:
    """The two endpoints."""
    routes = Blueprint("openai", __name__)
    endpoint = Completions(runtime)

    @routes.post("/v1/chat/completions")
    def chat_completions() -> Response:
        return endpoint.answer(ChatBody, "chatcmpl")

    @routes.post("/v1/completions")
    def completions() -> Response:
        return endpoint.answer(CompletionBody, "cmpl")

    return routes


class Completions:
    """Accepts a request and answers it: later, as a stream, or in one body."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._jobs, self._settings = runtime, runtime.jobs, runtime.settings

    def answer(self, kind: type[GenerateBody], prefix: str) -> Response:
        """Answer the current HTTP exchange."""
        if self._runtime.draining.is_set():
            raise shutting_down()
        prefer = exchange.preferences(self._settings.max_wait)
        raw = exchange.body(self._settings.body_timeout, self._settings.max_body_bytes)
        body = validate(kind, raw)
        request = self._request(body, f"{prefix}-{uuid.uuid4().hex}")
        request_log.present().accept(request, with_prompt=self._settings.log_prompts)
        check, key, owner = exchange.client_check(), exchange.key(raw), exchange.owner()
        submission = Submission(request, prefer.wait_s or 0, check, key, owner)
        try:
            return exchange.applied(self._respond(body, submission, prefer), prefer)
        except ClientGoneError:
            raise exchange.client_closed() from None

    def _request(self, body: GenerateBody, request_id: str) -> GenerateRequest:
        model = self._runtime.catalog.resolve(body.model)
        limits = Limits(self._settings.n_predict, self._settings.request_timeout)
        return to_request(body, request_id, model, limits)

    def _respond(self, body: GenerateBody, submission: Submission, prefer: Prefer) -> Response:
        if prefer.is_async:
            return self._later(submission)
        if not body.stream:
            return self._whole(submission)
        options = body.stream_options
        return self._stream(submission, with_usage=options is not None and bool(options.include_usage))

    def _later(self, submission: Submission) -> Response:
        admission = self._jobs.submit(submission)
        request_log.present().name(admission.id)
        status = admission.state.value
        answer = {"id": admission.id, "object": "inference.request", "status": status}
        response = jsonify(answer | {"model": submission.request.model})
        response.status_code = 202
        request_log.present().outcome = status
        response.headers["Location"] = f"/v1/requests/{admission.id}"
        return exchange.told(response, admission)

    def _whole(self, submission: Submission) -> Response:
        with self._jobs.started(submission) as (admission, listener):
            request_log.present().follow(listener)
            try:
                events = list(listener.until_over(submission.check))
            except ClientGoneError:
                self._leave(submission, listener)
                raise
        return exchange.told(jsonify(self._answer(submission, admission).whole(events)), admission)

    def _stream(self, submission: Submission, *, with_usage: bool) -> Response:
        with ExitStack() as stack:
            admission, listener = stack.enter_context(self._jobs.started(submission))
            request_log.present().follow(listener)
            answer = replace(self._answer(submission, admission), with_usage=with_usage)
            stream = sse.EventStream(answer, listener, submission.check, self._settings.heartbeat)
            stack.callback(self._leave_stream, submission, stream, listener)
            stream.wait_first(self._settings.first_event_timeout)
            response = Response(cast("list[bytes]", stream), headers=sse.HEADERS)
            response.call_on_close(stack.pop_all().close)
            return exchange.told(response, admission)

    def _leave_stream(self, submission: Submission, stream: sse.EventStream, listener: Listener) -> None:
        # If this process is shutting down, its client may continue the stream at another process.
        if not (listener.is_over or stream.is_complete or self._runtime.draining.is_set()):
            self._leave(submission, listener)

    def _leave(self, submission: Submission, listener: Listener) -> None:
        """Cancel a request whose client has gone, unless the client has a key to come back with."""
        if submission.key is None:
            self._jobs.abandon(listener.request_id)

    def _answer(self, submission: Submission, admission: Admission) -> Answer:
        request = replace(submission.request, id=admission.id)
        fingerprint = self._runtime.catalog.fingerprint(request.model)
        return Answer.to(request, admission.created, fingerprint=fingerprint)
