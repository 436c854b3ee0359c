"""The output of ``serve``: text for a person, or JSON lines like the lines in the parts' logs."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tasks.settings import BrokerSettings


class Voice:
    """Output for a person."""

    def tell(self, text: str) -> None:
        """Say what is happening, if that is possible: a full disk or a closed pipe ends no service."""
        with suppress(OSError):
            click.echo(text)

    def show(self, part: str, line: str) -> None:
        """Show a line that ``part`` logged."""
        with suppress(OSError):
            click.echo(f"{part:>6} | {line}", err=True)


class JsonVoice(Voice):
    """Output for a program: each line on standard error is a JSON object."""

    def __init__(self) -> None:
        self._log = logging.getLogger("service.supervisor")

    def tell(self, text: str) -> None:
        """Say what is happening."""
        self._log.info("%s", text)

    def show(self, part: str, line: str) -> None:
        """Show a line that ``part`` logged, in a JSON object unless it is one already."""
        if line.startswith("{"):
            with suppress(OSError):
                click.echo(line, err=True)
        elif line.strip():
            self._log.info("%s", line, extra={"part": part})


def voice_for(settings: BrokerSettings) -> Voice:
    """The voice that ``--log-format`` asks for."""
    if settings.log_format == "text":
        return Voice()
    from tasks.telemetry import logs

    logs.configure(settings)
    return JsonVoice()
