"""How gunicorn runs the API.

The command is::

    python -m gunicorn -c python:service.server.gunicorn_config

Everything comes from :class:`service.settings.ApiSettings`. Nothing here may import redis or
prometheus_client: gevent patches the process first, and the directory of the metrics has to be set.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from service.settings import api_settings
from tasks.telemetry import logs

_settings = api_settings()
_METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"

bind = (
    f"[{_settings.host}]:{_settings.port}" if ":" in _settings.host else f"{_settings.host}:{_settings.port}"
)
workers = _settings.api_workers
wsgi_app = "service.server.wsgi:build()"
worker_class = "service.server.gunicorn_worker.Worker"
worker_connections = _settings.max_connections
backlog = 4096
graceful_timeout = int(_settings.drain_timeout)
timeout = 60  # seconds without a sign of life before a process is killed
keepalive = 30
control_socket_disable = True
proc_name = "inference-server-api"
loglevel = _settings.log_level
logconfig_dict = logs.configuration(_settings)
limit_request_line = 4094


def on_starting(server: Any) -> None:
    """Begin the metrics' files anew: a counter starts at 0 with its processes."""
    given = os.environ.get(_METRICS_DIR)
    directory = Path(given or tempfile.mkdtemp(prefix="inference-metrics-"))
    directory.mkdir(parents=True, exist_ok=True)
    for file in directory.glob("*.db"):
        file.unlink()
    os.environ[_METRICS_DIR] = str(directory)
    server.temporary_metrics = None if given else directory


def when_ready(server: Any) -> None:
    """Have a second SIGTERM end it at once, as SIGQUIT does; gunicorn would go on waiting."""
    seen: list[int] = []

    def on_term(signum: int, frame: Any) -> None:
        server.signal(signal.SIGQUIT if seen else signum, frame)
        seen.append(signum)

    signal.signal(signal.SIGTERM, on_term)


def worker_exit(_server: Any, worker: Any) -> None:
    """Send what is left of traces now: greenlets don't run any more when the interpreter ends."""
    from service.telemetry import tracing

    tracing.close(getattr(worker, "wsgi", None))


def child_exit(_server: Any, worker: Any) -> None:
    """Drop a dead process's live gauges; its counters stay part of the sum."""
    for file in Path(os.environ[_METRICS_DIR]).glob(f"gauge_live*_{worker.pid}.db"):
        file.unlink(missing_ok=True)


def on_exit(server: Any) -> None:
    """Remove the metrics' files if they are nobody else's."""
    if server.temporary_metrics is not None:
        shutil.rmtree(server.temporary_metrics, ignore_errors=True)
