"""``inference-server bench``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from service.cli.common.options import SettingsCommand, settings_options
from service.cli.common.private import service_at
from service.cli.common.terminal import console
from service.cli.sweep import sweep, sweep_options
from service.client.api_client import ClientError, served_model
from service.client.load_run import Load, Summary, run_load
from service.settings import ApiSettings
from tasks.settings import WorkerSettings

_NOT_MEASURED = ("redis_url", "host", "port", "n_predict", "drain_timeout")


@click.command(cls=SettingsCommand)
@click.option("--requests", type=click.IntRange(1), default=16, show_default=True, help="Requests in all.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at a time; default: all, up to 16.")
@click.option(
    "--n-predict", type=click.IntRange(1), help="Tokens of each answer; default: 128, or 16 with --quick."
)
@click.option("--url", help="A running service; default: start one with the settings below.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--sweep",
    "is_sweep",
    is_flag=True,
    help="Measure many combinations of settings, each in a separate service.",
)
@sweep_options
@settings_options(WorkerSettings, ApiSettings, without=_NOT_MEASURED)
def bench(url: str | None, as_json: bool, is_sweep: bool, **options: Any) -> None:
    """Measure throughput and latency under concurrent load.

    All requests share a system prompt; each has a different user prompt. Answers are greedy and go on past
    the end of sequence, so that all have the same length. A few short requests go first to warm up.

    With --sweep: measure every encoding with every workers x threads at every load, and print a table; with
    --out, write files, too.
    """
    if is_sweep:
        if url is not None:
            raise click.UsageError("--sweep starts its own services; leave --url out.")
        sweep(options, as_json=as_json)
    else:
        _bench(url, options["requests"], options["concurrency"], options["n_predict"] or 128, as_json=as_json)


def _bench(url: str | None, requests: int, concurrency: int | None, n_predict: int, *, as_json: bool) -> None:
    load = Load(requests, min(requests, concurrency or 16), n_predict)
    with service_at(url) as reached:
        try:
            summary = _measure(reached, load)
        except ClientError as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"concurrency": load.concurrency, "n_predict": n_predict, **summary.as_dict()}))
    else:
        _print_table(load, summary)


def _measure(url: str, load: Load) -> Summary:
    model = served_model(url)
    run_load(url, model, Load(load.concurrency, load.concurrency, n_predict=4))
    with _bar(load.num_requests) as advance:
        return run_load(url, model, load, advance)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import Progress

    # The bar refreshes seldom, because it shares the cores with the measured service.
    with Progress(console=console(stderr=True), refresh_per_second=2, transient=True) as progress:
        task = progress.add_task("Requests", total=total)
        yield lambda: progress.advance(task)


def _print_table(load: Load, summary: Summary) -> None:
    from rich.table import Table

    table = Table("", "p50", "p95", title=f"{load.num_requests} requests, {load.concurrency} at a time")
    table.add_row("time to first token, ms", f"{summary.ttft_p50_ms:.1f}", f"{summary.ttft_p95_ms:.1f}")
    table.add_row("between tokens, ms", f"{summary.itl_p50_ms:.1f}", f"{summary.itl_p95_ms:.1f}")
    table.add_row("whole request, ms", f"{summary.e2e_p50_ms:.0f}", f"{summary.e2e_p95_ms:.0f}")
    shown = console()
    shown.print(table)
    shown.print(
        f"{summary.tokens_per_second:.1f} tok/s: {summary.num_tokens} tokens in {summary.wall_s:.2f} s, "
        f"{summary.num_failed} requests failed"
    )
