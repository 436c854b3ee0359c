"""``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from typing import cast

from flask import Blueprint, Response, jsonify

from service import sse
from service.answers import Answer
from service.connection import ClientGoneError
from service.errors import shutting_down
from service.prefer import Prefer
from service.routes import exchange
from service.runtime import Runtime
from service.schemas import ChatBody, CompletionBody, GenerateBody, Limits, to_request, validate
from service.streams import Listener
from tasks.messages import GenerateRequest


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
        """Answer the present HTTP request."""
        if self._runtime.draining.is_set():
            raise shutting_down()
        prefer = exchange.preferences(self._settings.max_wait)
        body = validate(kind, exchange.body())
        request = self._request(body, f"{prefix}-{uuid.uuid4().hex}")
        try:
            return exchange.applied(self._respond(body, request, prefer), prefer)
        except ClientGoneError:
            raise exchange.client_closed() from None

    def _request(self, body: GenerateBody, request_id: str) -> GenerateRequest:
        model = self._runtime.catalog.resolve(body.model)
        n_ctx = self._runtime.catalog.n_ctx(model)
        limits = Limits(n_ctx, self._settings.n_predict, self._settings.request_timeout)
        return to_request(body, request_id, model, limits)

    def _respond(self, body: GenerateBody, request: GenerateRequest, prefer: Prefer) -> Response:
        if prefer.is_async:
            return self._later(request, prefer)
        if not body.stream:
            return self._whole(request, prefer)
        options = body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        return self._stream(Answer.to(request, time.time(), with_usage=with_usage), request, prefer)

    def _later(self, request: GenerateRequest, prefer: Prefer) -> Response:
        self._jobs.submit(request, prefer.wait_s or 0, exchange.client_check())
        location = f"/v1/requests/{request.id}"
        response = jsonify(id=request.id, object="inference.request", status="queued", model=request.model)
        response.status_code = 202
        response.headers["Location"] = location
        return response

    def _whole(self, request: GenerateRequest, prefer: Prefer) -> Response:
        check = exchange.client_check()
        with self._jobs.started(request, prefer.wait_s or 0, check) as listener:
            try:
                events = list(listener.until_over(check))
            except ClientGoneError:
                self._jobs.abandon(request.id)
                raise
        return jsonify(Answer.to(request, time.time()).whole(events))

    def _stream(self, answer: Answer, request: GenerateRequest, prefer: Prefer) -> Response:
        check = exchange.client_check()
        with ExitStack() as stack:
            listener = stack.enter_context(self._jobs.started(request, prefer.wait_s or 0, check))
            stream = sse.EventStream(answer, listener, check, self._settings.heartbeat)
            stack.callback(self._leave, stream, listener)
            stream.wait_first(self._settings.first_event_timeout)
            response = Response(cast("list[bytes]", stream), headers=sse.HEADERS)
            response.call_on_close(stack.pop_all().close)
            return response

    def _leave(self, stream: sse.EventStream, listener: Listener) -> None:
        """Cancel what nobody reads any more; but what was cut by this process's end, another may take up."""
        if not (listener.is_over or stream.is_complete or self._runtime.draining.is_set()):
            self._jobs.abandon(listener.request_id)
