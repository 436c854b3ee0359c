"""``inference-server worker``."""

from __future__ import annotations

import os

import click

from service.cli.options import SettingsCommand, read_settings, settings_options
from service.cli.prepare import prepare_model
from service.supervisor.parts import WORKER_COMMAND
from tasks.settings import WorkerSettings


@click.command(cls=SettingsCommand)
@settings_options(WorkerSettings)
def worker() -> None:
    """Run a worker host alone; it joins whoever uses the same --redis-url.

    It becomes ``celery -A tasks worker``: SIGTERM lets running requests finish for --drain-timeout seconds.
    """
    read_settings(WorkerSettings)
    prepare_model()
    os.execv(WORKER_COMMAND[0], WORKER_COMMAND)  # noqa: S606
