"""``inference-server api``."""

from __future__ import annotations

import os

import click

from service.cli.common.files import require_files
from service.cli.common.options import SettingsCommand, read_settings, settings_options
from service.settings import ApiSettings
from service.supervisor.programs.plan import API_COMMAND, PACKAGES


@click.command(cls=SettingsCommand)
@settings_options(ApiSettings)
def api() -> None:
    """Run the HTTP API alone, beside workers with the same --redis-url.

    The process becomes gunicorn. After SIGTERM, open responses get --drain-timeout seconds to finish.
    """
    require_files(read_settings(ApiSettings))
    os.chdir(PACKAGES)
    os.execv(API_COMMAND[0], API_COMMAND)  # noqa: S606
