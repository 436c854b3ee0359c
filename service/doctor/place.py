"""Checks the ports, the state folder and the collector of traces."""

from __future__ import annotations

import os
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from service.doctor.finding import Finding, Level, mib
from service.supervisor.errors import ServiceError
from service.supervisor.programs.probe import answers_200, local_url, require_free
from service.supervisor.state import locked

#: Bytes that should be free for the queue's file and logs.
ROOM = 1 << 30


def look_at_metrics_port(host: str, port: int) -> Finding:
    """Whether the worker host's ``/metrics`` can be served."""
    try:
        require_free(host, port)
    except ServiceError:
        told = f"Something listens on {host}, port {port} already."
        return Finding("metrics port", Level.PROBLEM, told, "Pass another --metrics-port.")
    return Finding("metrics port", Level.OK, f"{host}, port {port} is free")


def look_at_port(host: str, port: int) -> Finding:
    """Whether the API can listen."""
    try:
        require_free(host, port)
    except ServiceError as error:
        if answers_200(f"{local_url(host, port)}/healthz")():
            told = f"A server answers on {host}, port {port} already, perhaps this one."
            return Finding("port", Level.PROBLEM, told, "End it before a start, or pass another --port.")
        return Finding("port", Level.PROBLEM, str(error), "Pass another --host or --port.")
    return Finding("port", Level.OK, f"{host}, port {port} is free")


def look_at_traces(endpoint: str) -> Finding:
    """Whether traces can be made and a collector takes them; requests are answered either way."""
    if find_spec("opentelemetry") is None:
        advice = "pip install 'concurrent-inference-server[tracing]', or leave --otlp-endpoint out."
        return Finding("traces", Level.WARNING, "OpenTelemetry is not installed.", advice)
    try:
        place = urlsplit(endpoint)
        address = (place.hostname or "", place.port or (443 if place.scheme == "https" else 80))
        socket.create_connection(address, timeout=2).close()
    except (OSError, ValueError) as error:
        advice = "Start a collector that takes OTLP over HTTP there, or leave --otlp-endpoint out."
        return Finding("traces", Level.WARNING, f"No collector takes traces at {endpoint}: {error}", advice)
    return Finding("traces", Level.OK, f"sent to {endpoint}")


def look_at_state(folder: Path) -> Finding:
    """Whether the state folder can be written and no other service uses it."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        told = f"{existing} can't be written by this user."
        return Finding("state", Level.PROBLEM, told, "Pass another --state-dir, or change its owner.")
    if existing == folder:
        try:
            with locked(folder):
                pass
        except ServiceError as error:
            return Finding("state", Level.PROBLEM, str(error), "Pass another --state-dir.")
    free = shutil.disk_usage(existing).free
    scarce = f"The queue's file and logs want {mib(ROOM)}; make room, or pass another --state-dir."
    return Finding.judge("state", f"{folder}: {mib(free)} free", warning=scarce if free < ROOM else "")
