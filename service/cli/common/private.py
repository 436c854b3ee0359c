"""A private service that lives as long as a command runs."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from service.cli.common.options import read_settings
from service.cli.common.prepare import prepare_model
from service.cli.common.terminal import unwinding_on_sigterm
from service.supervisor.errors import ServiceError
from service.supervisor.local import running
from service.supervisor.programs.plan import Plan
from service.supervisor.programs.probe import free_port
from service.supervisor.signals import Signals
from tasks.settings import WorkerSettings


def _tell(text: str) -> None:
    click.echo(f"{text} …", err=True)


@contextmanager
def service_at(url: str | None, tell: Callable[[str], None] = _tell) -> Iterator[str]:
    """Give ``url``; without it, start a private service, give its URL, and end it afterwards.

    A private service never uses a shared Redis, because its worker would take other people's requests.
    ``tell`` gets a text for each stage of the start.
    """
    if url is not None:
        yield url.removesuffix("/")
        return
    try:
        with unwinding_on_sigterm(), tempfile.TemporaryDirectory(prefix="inference-") as folder:
            plan = _plan(Path(folder))
            with Signals() as signals, running(plan, signals, tell):
                yield plan.url
    except ServiceError as error:
        raise click.ClickException(str(error)) from error


def _plan(state: Path) -> Plan:
    read_settings(WorkerSettings)
    model, port = prepare_model(), free_port()
    os.environ |= {"INFERENCE_HOST": "127.0.0.1", "INFERENCE_PORT": str(port), "INFERENCE_DRAIN_TIMEOUT": "0"}
    os.environ["INFERENCE_METRICS_PORT"] = "0"  # a running service may use the port
    # Other users of the machine have no business here, and the user's own keys are for other services.
    os.environ["INFERENCE_API_KEYS"] = os.environ["INFERENCE_API_KEY"] = secrets.token_hex(16)
    env = {
        name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "INFERENCE_REDIS_URL")
    }
    return Plan(state=state, env=env, url=f"http://127.0.0.1:{port}", model=str(model), drain_timeout_s=0)
