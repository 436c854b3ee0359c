"""``inference-server worker``."""

from __future__ import annotations

import os

import click

from service.cli.common.options import SettingsCommand, read_settings, settings_options
from service.cli.common.prepare import prepare_model
from service.supervisor.programs.plan import PACKAGES, worker_command
from tasks.descriptors import raise_limit
from tasks.settings import WorkerSettings


@click.command(cls=SettingsCommand)
@settings_options(WorkerSettings)
def worker() -> None:
    """Run a worker host alone; it joins the service at --redis-url.

    The process becomes ``celery -A tasks worker``. After SIGTERM, running requests get --drain-timeout
    seconds to finish.
    """
    settings = read_settings(WorkerSettings)
    raise_limit()
    prepare_model()
    command = worker_command(f"worker-{os.getpid()}", settings.log_level)
    os.chdir(PACKAGES)
    os.execv(command[0], command)  # noqa: S606
