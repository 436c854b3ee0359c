"""``inference-server top``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import click

from service.cli.common.terminal import console
from service.client.api_client import ClientError
from service.top.rates import History, fetch
from tasks.contract.status import Status

#: Lines of the view without the recent requests and the children.
OTHER_LINES = 12
#: Recent requests that ``--once`` shows.
ONCE_ROWS = 10


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="A running service.")
@click.option("--api-key", envvar="INFERENCE_API_KEY", show_envvar=True, help="If the service wants one.")
@click.option("--interval", type=click.FloatRange(0.2), default=1.0, show_default=True, help="In seconds.")
@click.option("--once", is_flag=True, help="Print what is now, and end.")
def top(url: str, api_key: str | None, interval: float, once: bool) -> None:
    """Watch queue, slots, speed and recent requests in the terminal; Ctrl-C ends it."""
    try:
        first = fetch(url, api_key)
    except ClientError as error:
        raise click.ClickException(str(error)) from error
    if once:
        _print(first)
        return
    with suppress(KeyboardInterrupt):
        _watch(first, _following(url, api_key, interval))


def _print(status: Status) -> None:
    from service.top.view import view

    shown, history = console(), History()
    history.add(status)
    shown.print(view(status, history, (shown.width, ONCE_ROWS)))


def _watch(status: Status, following: Iterator[Status | ClientError]) -> None:
    from rich.live import Live

    from service.top.view import view

    shown, history = console(), History()
    history.add(status)
    with Live(console=shown, screen=True, auto_refresh=False) as live:
        problem = None
        while True:
            size = shown.width, shown.height - OTHER_LINES - len(status.children)
            live.update(view(status, history, size, problem), refresh=True)
            found = next(following)
            problem = str(found) if isinstance(found, ClientError) else None
            if isinstance(found, Status):
                status = found
                history.add(found)


def _following(url: str, api_key: str | None, interval_s: float) -> Iterator[Status | ClientError]:
    """Fetch the status for ever; an error doesn't end it, because services come back."""
    while True:
        time.sleep(interval_s)
        try:
            yield fetch(url, api_key)
        except ClientError as error:
            yield error
