"""Lets the programs that a command starts open as many files as the system allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from service.server.capacity import TooFewFilesError, connections
from tasks.descriptors import raise_limit

if TYPE_CHECKING:
    from service.settings import ApiSettings


def require_files(settings: ApiSettings) -> None:
    """Raise the limit of open files, and end the command with a sentence if it is too low for an API."""
    try:
        connections(settings.max_connections, raise_limit())
    except TooFewFilesError as error:
        raise click.ClickException(str(error)) from None
