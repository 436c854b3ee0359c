"""How gunicorn runs the API.

The command is::

    python -m gunicorn -c python:service.server.gunicorn_config

All values come from :class:`service.settings.ApiSettings`. This module must not import redis or
prometheus_client: before that, gevent must patch the process, and the metrics directory must be set.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from service.server import capacity
from service.settings import api_settings
from tasks.descriptors import raise_limit
from tasks.telemetry import logs

_settings = api_settings()
_METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"
try:
    _connections = capacity.connections(_settings.max_connections, raise_limit())
except capacity.TooFewFilesError as error:
    raise SystemExit(f"inference-server api: {error}") from None

bind = (
    f"[{_settings.host}]:{_settings.port}" if ":" in _settings.host else f"{_settings.host}:{_settings.port}"
)
workers = _settings.api_workers
wsgi_app = "service.server.wsgi:build()"
worker_class = "service.server.gunicorn_worker.Worker"
worker_connections = _connections + capacity.SPARE
backlog = 4096
graceful_timeout = int(_settings.drain_timeout)
timeout = 60  # seconds without a sign of life before a process is killed
keepalive = 30
control_socket_disable = True
proc_name = "inference-server-api"
loglevel = _settings.log_level
logconfig_dict = logs.configuration(_settings)
# What browsers, proxies and OpenAI's clients send is well below these.
limit_request_line = 4094
limit_request_fields = 64
limit_request_field_size = 8190
# By default gunicorn takes SCRIPT_NAME out of a header of that name, which would move every path.
forwarder_headers = ""
header_map = "drop"


def on_starting(server: Any) -> None:
    """Delete old metrics files, so that counters start at 0 with the new processes; warn if all may enter."""
    given = os.environ.get(_METRICS_DIR)
    directory = Path(given or tempfile.mkdtemp(prefix="inference-metrics-"))
    directory.mkdir(parents=True, exist_ok=True)
    for file in directory.glob("*.db"):
        file.unlink()
    os.environ[_METRICS_DIR] = str(directory)
    server.temporary_metrics = None if given else directory
    if _settings.exposure:
        server.log.warning(_settings.exposure)


def when_ready(server: Any) -> None:
    """Make a second SIGTERM end the server at once, as SIGQUIT does; gunicorn itself would keep waiting."""
    seen: list[int] = []

    def on_term(signum: int, frame: Any) -> None:
        server.signal(signal.SIGQUIT if seen else signum, frame)
        seen.append(signum)

    signal.signal(signal.SIGTERM, on_term)


def worker_exit(_server: Any, worker: Any) -> None:
    """Send the remaining spans now, since greenlets no longer run when the interpreter ends."""
    from service.telemetry import tracing

    tracing.close(getattr(worker, "wsgi", None))


def child_exit(_server: Any, worker: Any) -> None:
    """Remove a dead process's live gauges; its counters stay part of the sum."""
    for file in Path(os.environ[_METRICS_DIR]).glob(f"gauge_live*_{worker.pid}.db"):
        file.unlink(missing_ok=True)


def on_exit(server: Any) -> None:
    """Remove the metrics files if this server made their directory."""
    if server.temporary_metrics is not None:
        shutil.rmtree(server.temporary_metrics, ignore_errors=True)
