"""``inference-server generate``."""

from __future__ import annotations

import time
from typing import Any

import click

from service.cli.common.options import SettingsCommand, settings_options
from service.cli.common.private import service_at
from service.cli.common.terminal import console
from service.client.api_client import ClientError, chat_body, parse, served_model, stream, text_of
from tasks.settings import WorkerSettings

#: The server's timings that are shown, in this order, with what they mean.
_SHOWN = {
    "queue_ms": "waited in the queue, ms",
    "ttft_ms": "to the first token, ms",
    "itl_ms": "between tokens, mean ms",
    "itl_p95_ms": "between tokens, p95 ms",
    "prompt_n": "prompt tokens computed",
    "cache_n": "prompt tokens reused",
    "predicted_n": "tokens generated",
    "predicted_per_second": "tokens a second",
}


@click.command(cls=SettingsCommand)
@click.option("--prompt", required=True, help="What to ask.")
@click.option("--system", help="A system prompt before it.")
@click.option("--n-predict", type=click.IntRange(1), default=128, show_default=True, help="Tokens at most.")
@click.option("--temperature", type=float, help="0 is greedy; default: the server's.")
@click.option("--seed", type=int, help="Makes sampling repeatable.")
@click.option(
    "--url",
    help="A running service, its key in INFERENCE_API_KEY; default: start one for this request.",
)
@settings_options(WorkerSettings, without=("redis_url", "drain_timeout", "queue_limit", "result_ttl"))
def generate(url: str | None, prompt: str, system: str | None, n_predict: int, **options: Any) -> None:
    """Stream one answer in the terminal, then show its timings."""
    with service_at(url) as reached:
        try:
            body = chat_body(served_model(reached), prompt, system, n_predict, **options)
            timings = _print_live(reached, body)
        except ClientError as error:
            raise click.ClickException(str(error)) from error
    _print_timings(timings)


def _print_live(url: str, body: dict[str, Any]) -> dict[str, float]:
    """Print the answer as it comes; return the server's timings or, if it sends none, the client's own."""
    started, first, timings = time.perf_counter(), None, None
    for chunk in stream(url, body):
        event = parse(chunk)
        if text := text_of(event):
            first = first or chunk.at
            click.echo(text, nl=False)
        timings = event.get("timings") or timings
    click.echo()
    return timings or {"ttft_ms": ((first or started) - started) * 1e3}


def _print_timings(timings: dict[str, float]) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 1))
    for name, told in _SHOWN.items():
        if name in timings:
            table.add_row(
                told, f"{timings[name]:.1f}" if isinstance(timings[name], float) else str(timings[name])
            )
    console(stderr=True).print(table)
