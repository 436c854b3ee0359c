"""The command; each request has a greenlet, so that the generator leaves the cores to the server."""

# ruff: noqa: E402 - gevent must come before everything that uses sockets or threads
from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from loadtest.arrivals import chat_bodies, poisson, run_open
from loadtest.compare.servers import Running, Setting, ours, running
from loadtest.overload.verdict import Capacity, Verdict, lines
from service.client.api_client import served_model
from service.client.load_run import Load, Summary, run_load
from service.weights.model_files import default_model


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--times", default=5.0, show_default=True, help="Arrivals as a multiple of the capacity.")
@click.option("--duration", default=60.0, show_default=True, help="Seconds that requests arrive.")
@click.option("--queue-limit", default=32, show_default=True, help="Requests that may wait.")
@click.option("--slots", default=16, show_default=True, help="Requests that run at once.")
@click.option("--threads", default=2, show_default=True, help="Compute threads.")
@click.option("--n-predict", default=64, show_default=True, help="Tokens of an answer.")
@click.option("--waves", default=8, show_default=True, help="Length of the capacity's measurement, in slots.")
@click.option("--seed", default=1, show_default=True, help="Of the arrivals' times.")
def main(**options: Any) -> None:
    """Measure the capacity, then send several times as many requests on a schedule, and report the result."""
    plan = Options(**options)
    setting = Setting(plan.model or default_model(), n_ctx=1024, slots=plan.slots, threads=plan.threads)
    with running(ours(setting, 1, ("--queue-limit", str(plan.queue_limit)))) as service:
        capacity = Capacity.of(_closed(service, plan.closed_load), plan.queue_limit, plan.slots)
        rate = plan.times * capacity.requests_per_second
        offsets = list(poisson(rate, plan.duration, random.Random(plan.seed)))
        verdict, share = _open(service, offsets, plan.n_predict)
    for line in lines(verdict, capacity):
        click.echo(line)
    click.echo(f"the generator took {share:.0%} of a core")


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options."""

    model: Path | None
    times: float
    duration: float
    queue_limit: int
    slots: int
    threads: int
    n_predict: int
    waves: int
    seed: int

    @property
    def closed_load(self) -> Load:
        """Keeps every slot busy, and the queue half full, so that nothing is refused."""
        return Load(self.waves * self.slots, self.slots + self.queue_limit // 2, self.n_predict)


def _closed(service: Running, load: Load) -> Summary:
    name = served_model(service.url)
    run_load(service.url, name, Load(2, 2, 8))
    with Progress(transient=True) as progress:
        task = progress.add_task("capacity", total=load.num_requests)
        return run_load(service.url, name, load, lambda: progress.advance(task))


def _open(service: Running, offsets: list[float], n_predict: int) -> tuple[Verdict, float]:
    """The verdict, and the share of a core that the generator took."""
    bodies = chat_bodies(served_model(service.url), n_predict)
    started, cpu = time.perf_counter(), time.process_time()
    with Progress(transient=True, refresh_per_second=1) as progress:
        task = progress.add_task("overload", total=len(offsets))
        arrivals = run_open(service.url, bodies, offsets, lambda: progress.advance(task))
    share = (time.process_time() - cpu) / (time.perf_counter() - started)
    return Verdict.of(arrivals, n_predict), share


if __name__ == "__main__":
    main()
