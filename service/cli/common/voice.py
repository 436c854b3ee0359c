"""How ``serve`` speaks: to a person, or in JSON lines like the parts whose logs it shows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tasks.settings import BrokerSettings


class Voice:
    """For a person."""

    def tell(self, text: str) -> None:
        """Say what goes on."""
        click.echo(text)

    def show(self, part: str, line: str) -> None:
        """Show a line that ``part`` logged."""
        click.echo(f"{part:>6} | {line}", err=True)


class JsonVoice(Voice):
    """For a program: each line on standard error is a JSON object."""

    def __init__(self) -> None:
        self._log = logging.getLogger("service.supervisor")

    def tell(self, text: str) -> None:
        """Say what goes on."""
        self._log.info("%s", text)

    def show(self, part: str, line: str) -> None:
        """Show a line that ``part`` logged, in an object unless it is one."""
        if line.startswith("{"):
            click.echo(line, err=True)
        elif line.strip():
            self._log.info("%s", line, extra={"part": part})


def voice_for(settings: BrokerSettings) -> Voice:
    """As ``--log-format`` says."""
    if settings.log_format == "text":
        return Voice()
    from tasks.telemetry import logs

    logs.configure(settings)
    return JsonVoice()
