"""``inference-server doctor``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click

from service.cli.common.options import SettingsCommand, read_settings, settings_options
from service.cli.common.terminal import console
from service.doctor.examine import examine_model, examine_place
from service.doctor.finding import Finding, Level
from service.settings import ApiSettings
from service.supervisor.settings import LocalSettings
from service.weights import model_files
from tasks.settings import WorkerSettings

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

S = TypeVar("S", bound="BaseSettings")
_MARKS = {Level.OK: "[green]ok[/]", Level.WARNING: "[yellow]warning[/]", Level.PROBLEM: "[red]problem[/]"}


@click.command(cls=SettingsCommand)
@settings_options(WorkerSettings, ApiSettings, LocalSettings)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--repair", is_flag=True, help="First compile llama.cpp for this machine and install it.")
def doctor(as_json: bool, repair: bool) -> None:
    """Check whether `serve` with the same options would work here, and say what to change.

    Loads the model and computes a few tokens in a separate process; serves nothing. The exit code is 1 if
    something would not work.
    """
    if repair and not _is_repaired():
        sys.exit(1)
    findings = list(_examine())
    is_fit = not any(finding.level is Level.PROBLEM for finding in findings)
    if as_json:
        told = {"is_fit": is_fit, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(told, indent=2))
    else:
        _show(findings)
    sys.exit(0 if is_fit else 1)


def _is_repaired() -> bool:
    """Compile and install llama.cpp; the program that does it reports its progress and its errors itself."""
    command = [sys.executable, "-P", "-m", "tasks.engine.build.compile", "--reinstall"]
    return subprocess.run(command, check=False).returncode == 0


def _examine() -> Iterator[Finding]:
    worker, api, local = _read(WorkerSettings), _read(ApiSettings), _read(LocalSettings)
    # All three may report the same bad setting; show it once.
    yield from dict.fromkeys(found for found in (worker, api, local) if isinstance(found, Finding))
    if not isinstance(worker, Finding):
        yield from examine_model(worker.model or model_files.default_model(), worker)
    if not (isinstance(api, Finding) or isinstance(local, Finding)):
        yield from examine_place(api, local, api.chosen_redis_url)


def _read(cls: type[S]) -> S | Finding:
    try:
        return read_settings(cls)
    except click.ClickException as error:
        return Finding("settings", Level.PROBLEM, error.message, "Change that option or its variable.")


def _show(findings: list[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for finding in findings:
        advice = f"\n[bold]{escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(_MARKS[finding.level], finding.about, escape(finding.told) + advice)
    console().print(table)
