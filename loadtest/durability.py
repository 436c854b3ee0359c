"""``python -m loadtest.durability``: what Valkey's append-only file costs in throughput.

The same server uses two kinds of Valkey in turn: one with ``appendonly yes``, which writes to disk every
second as in ``serve``, and one that keeps nothing.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import Progress

from loadtest.compare.servers import Setting, ours, running
from service.client.api_client import served_model
from service.client.load_run import Load, run_load
from service.supervisor.programs import valkey
from service.supervisor.programs.probe import free_port
from service.weights.model_files import default_model

SYNC = {True: ("--appendonly", "yes", "--appendfsync", "everysec"), False: ("--appendonly", "no")}


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--at-once", default=16, show_default=True, help="Requests at once.")
@click.option("--requests", default=32, show_default=True, help="Requests of a round.")
@click.option("--n-predict", default=128, show_default=True, help="Tokens of an answer.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; both take turns.")
def main(model: Path | None, at_once: int, requests: int, n_predict: int, rounds: int) -> None:
    """Compare throughput with and without an append-only file."""
    setting = Setting(model or default_model(), n_ctx=1024, slots=16, threads=2)
    load = Load(requests, at_once, n_predict)
    speeds: dict[bool, list[float]] = {True: [], False: []}
    with Progress(transient=True) as progress:
        task = progress.add_task("measuring", total=2 * rounds)
        for number in range(rounds):
            for is_durable in (True, False) if number % 2 else (False, True):
                speeds[is_durable].append(_speed(setting, load, is_durable))
                progress.advance(task)
    for is_durable, told in ((True, "append-only file"), (False, "nothing kept")):
        click.echo(f"{told}: {statistics.median(speeds[is_durable]):.0f} tok/s")
    ratios = [a / b for a, b in zip(speeds[True], speeds[False], strict=True)]
    click.echo(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def _speed(setting: Setting, load: Load, is_durable: bool) -> float:
    with _valkey(SYNC[is_durable]) as url, running(ours(setting, 1, ("--redis-url", url))) as service:
        name = served_model(service.url)
        run_load(service.url, name, Load(2, 2, 8))
        return run_load(service.url, name, load).tokens_per_second


@contextmanager
def _valkey(options: tuple[str, ...]) -> Iterator[str]:
    """Start a private Valkey on loopback, and delete its data afterwards."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="durability-") as folder:
        command = [str(valkey.binary()), "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen([*command, "--save", "", *options], stdout=log, stderr=log)
        try:
            yield _reached(f"redis://127.0.0.1:{port}/0", process)
        finally:
            process.terminate()
            process.wait(30)


def _reached(url: str, process: subprocess.Popen[bytes]) -> str:
    is_there = valkey.answers(url)
    while not is_there():
        if process.poll() is not None:
            raise click.ClickException(f"Valkey ended with {process.returncode}")
    return url


if __name__ == "__main__":
    main()
