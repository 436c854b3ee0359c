"""``python -m loadtest.figures``: what counting for the metrics costs.

Two engines with the same weights take turns, one with the observer that counts and one without, so that noise
affects both equally. Then each part is measured alone, without a model: what counting a step costs a child,
and what counting a finished request costs an API process.
"""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import click
from prometheus_client import CollectorRegistry
from rich.progress import track

from service.telemetry.metrics import Metrics
from service.telemetry.pages import Share
from service.weights.model_files import default_model
from tasks.contract.messages import Outcome, Sampling, State, Timings, Usage
from tasks.engine.costs.threads import CorePool
from tasks.engine.llama.context import Context
from tasks.engine.llama.model import Model
from tasks.engine.loop import Engine
from tasks.engine.observer import Observer
from tasks.engine.sequence import Delta, Job
from tasks.engine.step.scheduler import Step
from tasks.telemetry.metric_names import WORKER_LAYOUT
from tasks.telemetry.tally import SharedTallies
from tasks.telemetry.work_counter import WorkCounter

N_CTX, REPEATS = 512, 2000


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--rounds", default=10, show_default=True, help="Rounds; on and off take turns.")
@click.option("--slots", default=16, show_default=True, help="Sequences decoded together.")
@click.option("--threads", default=2, show_default=True, help="Compute threads.")
@click.option("--n-predict", default=128, show_default=True, help="Tokens of an answer.")
def main(model: Path | None, rounds: int, slots: int, threads: int, n_predict: int) -> None:
    """Measure throughput with and without observers, and each observer alone."""
    weights = Model(model or default_model())
    counter = WorkCounter(SharedTallies(WORKER_LAYOUT).row(0))
    runs = [Run(weights, observer, slots, threads) for observer in (Observer(), counter)]
    without, counted = zip(*_turns(runs, rounds, n_predict), strict=True)
    ratios = [b / a for a, b in zip(without, counted, strict=True)]
    click.echo(
        f"{slots} at once: with {statistics.median(counted):.1f} tok/s, without "
        f"{statistics.median(without):.1f} tok/s, with / without {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )
    step_us, steps_a_second = step_cost_us(slots), statistics.median(without) / slots
    click.echo(
        f"a step of {slots} in a child: {step_us:.1f} us, {step_us / 1e6 * steps_a_second:.3%} of its time"
    )
    click.echo(f"a request of {n_predict} tokens in an API process: {request_cost_us(n_predict):.0f} us")


def _turns(runs: list[Run], rounds: int, n_predict: int) -> list[tuple[float, ...]]:
    """Each round's speeds, in the order of ``runs``; the engines take turns in being first."""
    for run in runs:
        run.speed(n_predict)  # warms up
    measured = []
    for number in track(range(rounds), "measuring"):
        order = runs if number % 2 else runs[::-1]
        speeds = {run: run.speed(n_predict) for run in order}
        measured.append(tuple(speeds[run] for run in runs))
    return measured


class Run:
    """An engine that generates a full batch of answers at a time."""

    def __init__(self, model: Model, observer: Observer, slots: int, threads: int) -> None:
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._slots, self._prompt = slots, tuple(model.tokenize("Explain what a mutex is.", add_special=True))
        self._engine = Engine(
            lambda: Context(model, slots=slots, n_ctx=N_CTX, n_batch=512, threads=threads),
            self._take,
            CorePool(1, threads).member(0),
            observer,
        )
        self._engine.start()

    def speed(self, n_predict: int) -> float:
        """Tokens a second of one batch of answers."""
        started = time.perf_counter()
        for number in range(self._slots):
            job = Job(str(number), self._prompt, n_predict, Sampling(temperature=0), ignore_eos=True)
            self._engine.submit(job)
        for _ in range(self._slots):
            self._ended.get()
        return self._slots * n_predict / (time.perf_counter() - started)

    def _take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if delta.ending is not None:
                self._ended.put(delta.key)


def step_cost_us(slots: int) -> float:
    """What the observer adds to a step that decodes ``slots`` sequences, in microseconds."""
    counter, step = WorkCounter(SharedTallies(WORKER_LAYOUT).row(0)), Step(tuple(range(slots)))
    deltas = [Delta(str(slot), "x", (1,)) for slot in range(slots)]
    return _cost_us(lambda: counter.on_step(step, sum(len(delta.tokens) for delta in deltas), 0.05))


def request_cost_us(num_tokens: int) -> float:
    """What counting a finished request costs an API process, in microseconds."""
    usage, timings = Usage(10, num_tokens), Timings(10, 50.0, 0, num_tokens, 1e3, 100.0, 5.0, 60.0)
    outcome = Outcome("r", "m", State.SUCCEEDED, 2e3, usage, timings, itl_ms=(10.0,) * (num_tokens - 1))
    metrics = Metrics(CollectorRegistry(), Share.alone())
    return _cost_us(lambda: metrics.observe(outcome))


def _cost_us(action: Callable[[], None]) -> float:
    return min(timeit.repeat(action, number=REPEATS // 10, repeat=10)) / (REPEATS // 10) * 1e6


if __name__ == "__main__":
    main()
