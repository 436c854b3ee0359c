"""How gunicorn runs the API.

The command is::

    python -m gunicorn -c python:service.server.gunicorn_config

All values come from :class:`service.settings.ApiSettings`. This module must not import redis: before that,
gevent must patch the process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from service.server import capacity, share
from service.settings import api_settings
from service.telemetry.pages import Pages, Share
from tasks.descriptors import raise_limit
from tasks.telemetry import logs

_settings = api_settings()
#: Pages for API processes that are still ending while others have taken their place.
_SPARE_PAGES = 8
#: A memory-backed folder for the files by which processes show signs of life, so that a full disk stops none.
_MEMORY = Path("/dev/shm")  # noqa: S108
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
worker_tmp_dir = str(_MEMORY) if os.access(_MEMORY, os.W_OK | os.X_OK) else None
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
    """Make the memory in which all API processes count, with a page for each; warn if all may enter."""
    server.pages = Pages(2 * _settings.api_workers + _SPARE_PAGES)
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


def pre_fork(server: Any, worker: Any) -> None:
    """Give the process a page: a free one, in which it goes on if another process had it before."""
    worker.page = server.pages.take()


def post_fork(server: Any, worker: Any) -> None:
    """Let the application count in the process's page."""
    share.current = Share.of(server.pages, worker.page)


def child_exit(server: Any, worker: Any) -> None:
    """Keep what the process counted, for the one that replaces it to go on from."""
    server.pages.give_back(worker.page)
