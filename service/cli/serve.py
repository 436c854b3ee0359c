"""``inference-server serve``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from service.cli.common.files import require_files
from service.cli.common.options import SettingsCommand, read_settings, settings_options, variable
from service.cli.common.prepare import UnfitError, prepare_model
from service.cli.common.voice import voice_for
from service.settings import ApiSettings
from service.supervisor.errors import HopelessError, ServiceError
from service.supervisor.local import running
from service.supervisor.programs.plan import Plan
from service.supervisor.programs.probe import Address, local_url
from service.supervisor.programs.valkey import require_reachable
from service.supervisor.settings import LocalSettings
from service.supervisor.signals import STOPPING, Signals
from tasks.settings import WorkerSettings
from tasks.settings_file import settings_file


@click.command(cls=SettingsCommand)
@settings_options(WorkerSettings, ApiSettings, LocalSettings)
@click.option("--verbose", "-v", is_flag=True, help="Show what the parts log here too.")
def serve(verbose: bool) -> None:
    """Run everything on this machine: queue, worker and API.

    Without --redis-url a Valkey is embedded, for this user only, with its data under --state-dir. Ctrl-C
    ends it all when the answers in progress are done; a second Ctrl-C ends it at once.
    """
    try:
        with Signals(STOPPING) as signals:
            _serve(signals, verbose)
    except HopelessError as error:
        raise UnfitError(str(error)) from error
    except ServiceError as error:
        raise click.ClickException(str(error)) from error
    if signals.num_stops > 1:
        sys.exit(130)


def _serve(signals: Signals, verbose: bool) -> None:
    plan, api = _plan(), read_settings(ApiSettings)
    voice = voice_for(api)
    if api.exposure:
        voice.tell(f"Warning: {api.exposure}")
    with running(plan, signals, voice.tell, voice.show if verbose else None) as supervisor:
        if not signals.num_stops:
            voice.tell(f"Ready on {plan.url} - Ctrl-C ends it")
        supervisor.watch()
        voice.tell(
            f"Ending; answers in progress get {plan.drain_timeout_s:g} s. Ctrl-C again ends it at once."
        )
    voice.tell("Ended.")


def _plan() -> Plan:
    """Check everything that can be refused, before anything starts."""
    local, api, worker = (
        read_settings(LocalSettings),
        read_settings(ApiSettings),
        read_settings(WorkerSettings),
    )
    if file := settings_file():
        click.echo(f"Settings from {file}")
    require_files(api)
    redis_url = worker.chosen_redis_url
    if redis_url:
        require_reachable(redis_url)
    model = prepare_model()
    return Plan(
        state=local.state_dir.absolute(),
        env={**os.environ, variable("log_level"): worker.log_level},
        url=local_url(api.host, api.port),
        model=str(model),
        drain_timeout_s=worker.drain_timeout,
        redis_url=redis_url,
        queue_memory=local.queue_memory,
        addresses=tuple(_addresses(api, worker)),
    )


def _addresses(api: ApiSettings, worker: WorkerSettings) -> Iterator[Address]:
    yield Address(api.host, api.port, "--host or --port")
    if worker.metrics_port:
        yield Address(worker.metrics_host, worker.metrics_port, "--metrics-port, or 0 for none")
