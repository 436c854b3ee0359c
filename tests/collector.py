"""A collector of traces: takes OTLP over HTTP on a loopback port, and keeps the spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span; ids in hexadecimal, times in nanoseconds since the epoch."""

    trace: str
    id: str
    parent: str
    service: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]


class Collector:
    """A context manager: it listens inside the block."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                keep(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _keep(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(
                a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
            )
            self.spans += [_span(span, service) for scope in resource.scope_spans for span in scope.spans]

    def trace_of(self, request_id: str) -> list[Span]:
        """All spans of a request's trace, in the order of their starts."""
        found = [s.trace for s in self.spans if s.attributes.get("inference.request.id") == request_id]
        return sorted((s for s in self.spans if s.trace in found), key=lambda span: span.start)


def _span(span: Any, service: str) -> Span:
    attributes = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
    return Span(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        service=service,
        name=span.name,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=attributes,
    )
