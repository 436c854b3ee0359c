"""``inference-server tune``."""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from service.cli.common.options import SettingsCommand, read_settings, settings_options, variable
from service.cli.common.terminal import console, progress_bar
from service.client.api_client import ClientError
from tasks.contract.model_parts import model_bytes
from tasks.settings import Shape, WorkerSettings, available_cores
from tasks.settings_file import default_settings_file, settings_file

if TYPE_CHECKING:
    from service.bench.cases import Case
    from service.bench.tuning import Choice, Failure, Outcome, Trial
    from service.client.load_run import Load

_TUNED = ("workers", "threads", "slots")


def _duration(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    """Read ``90s``, ``5m`` or ``1h`` as seconds; a bare number is in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 5m or 1h.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@click.command(cls=SettingsCommand)
@click.option(
    "--budget",
    callback=_duration,
    default="5m",
    show_default=True,
    help="Time to take, to within a measurement; 90s, 5m, 1h.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Requests at once to tune for.",
)
@click.option("--encodings", help="Encodings to try; default: the model's own and coarser ones.")
@click.option(
    "--worth",
    type=click.FloatRange(1),
    default=1.25,
    show_default=True,
    help="How many times as fast a coarser encoding must be to be chosen: it answers worse.",
)
@click.option(
    "--write/--no-write", "is_written", default=True, show_default=True, help="Write the settings file."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; default: the settings file that `serve` reads. What else is in it stays.",
)
@settings_options(
    WorkerSettings, without=(*_TUNED, "redis_url", "drain_timeout", "queue_limit", "result_ttl", "model_name")
)
def tune(budget: float, concurrency: int, is_written: bool, out: Path | None, **options: Any) -> None:
    """Find the best settings for this machine, and write them down.

    Measures workers x threads x slots x encoding, each combination in a separate service with --concurrency
    requests at once: first all combinations for a short time, then the better half for longer, and so on.
    """
    from service.cli.common.write_settings import writable

    search = _Search(time.monotonic() + budget, concurrency)
    target = writable(out or settings_file() or default_settings_file()) if is_written else None
    outcome = search.run(_cases(options["encodings"], concurrency))
    choice = _chosen(outcome, options["worth"])
    _print(outcome, choice)
    if target is not None:
        _write(target, choice.trial.case)


def _cases(encodings: str | None, concurrency: int) -> tuple[Case, ...]:
    """All candidates; the machine's default shape goes first."""
    from service.bench.cases import names, shapes_for
    from service.bench.encodings import all_encoded, coarser
    from service.bench.tuning import candidates
    from service.cli.model import shown_progress

    model, cores = read_settings(WorkerSettings).model, available_cores()
    suited = Shape.suited(cores)
    shapes = sorted(shapes_for(cores), key=lambda shape: shape != (suited.workers, suited.threads))
    with shown_progress() as progress:
        models = all_encoded(model, names(encodings) if encodings else coarser(model), progress)
    return candidates(models, shapes, concurrency)


@dataclass
class _Search:
    """Measures until ``deadline`` (``time.monotonic``, seconds); ``longest_s``: the longest measurement."""

    deadline: float
    concurrency: int
    longest_s: float = 0.0

    def run(self, cases: tuple[Case, ...]) -> Outcome:
        """Measure under a progress bar that fills as the time passes."""
        from service.bench.tuning import halve

        start = time.monotonic()
        with progress_bar() as bar:
            task = bar.add_task("tuning", total=max(1.0, self.deadline - start))

            def tell(text: str | None = None) -> None:
                bar.update(task, completed=time.monotonic() - start, description=text)

            return halve(
                cases, self.concurrency, lambda case, load: self._measure(case, load, tell), self.has_time
            )

    def has_time(self) -> bool:
        """Whether one more measurement as long as the longest fits; the first one always does."""
        return not self.longest_s or time.monotonic() + self.longest_s <= self.deadline

    def _measure(self, case: Case, load: Load, tell: Callable[..., None]) -> Trial | Failure:
        started = time.monotonic()
        tell(f"{case}: {load.num_requests} x {load.n_predict} tokens")
        try:
            return _trial(case, load, tell)
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - started)


def _trial(case: Case, load: Load, tell: Callable[[], None]) -> Trial | Failure:
    from service.bench.tuning import Failure, Trial
    from service.cli.common.case_service import serving

    try:
        with serving(case) as service:
            result = service.measure(load, tell)
    except click.ClickException as error:
        return Failure(case, error.message)
    except ClientError as error:
        return Failure(case, str(error))
    summary = result.summary
    if summary.num_failed:
        return Failure(case, f"{summary.num_failed} of {load.num_requests} requests failed")
    figures = (summary.tokens_per_second, summary.ttft_p50_ms, summary.itl_mean_ms, result.memory_mib)
    return Trial(case, model_bytes(case.model.path), *figures)


def _chosen(outcome: Outcome, worth: float) -> Choice:
    from service.bench.tuning import choose

    if not outcome.finalists:
        raise click.ClickException(f"Nothing could be measured: {outcome.failures[0].reason}")
    return choose(outcome.finalists, worth)


def _print(outcome: Outcome, choice: Choice) -> None:
    from rich.table import Table

    table = Table("encoding", "workers x threads", "slots each")
    for name in ("tok/s", "TTFT p50, ms", "ITL mean, ms", "MiB"):
        table.add_column(name, justify="right")
    for trial in sorted(outcome.trials, key=lambda trial: -trial.tokens_per_second):
        case = trial.case
        figures = (trial.tokens_per_second, trial.ttft_p50_ms, trial.itl_mean_ms, trial.memory_mib)
        cells = [case.model.encoding, case.shape, str(case.slots), *(f"{value:.0f}" for value in figures)]
        table.add_row(*cells, style="bold" if trial == choice.trial else None)
    console().print(table)
    for failure in outcome.failures:
        click.echo(f"{failure.case} can't be measured: {failure.reason}", err=True)
    if outcome.num_untried:
        click.echo(
            f"{outcome.num_untried} more were not tried because the time was up; see --budget.", err=True
        )
    click.echo(f"Chosen: {choice.reason}")


def _write(path: Path, case: Case) -> None:
    from service.cli.common.write_settings import write_settings

    values: dict[str, str | int] = {"model": str(case.model.path.absolute())}
    values |= {"workers": case.workers, "threads": case.threads, "slots": case.slots}
    write_settings(path, values, f"inference-server tune, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}")
    click.echo(f"Written to {path}")
    if path != settings_file():
        click.echo(f"To use it: inference-server serve --settings {path}")
    for name in _overridden():
        click.echo(f"Note: the variable {variable(name)} is set, and wins over the file.", err=True)


def _overridden() -> list[str]:
    """The settings of the file that a variable overrides.

    This command's ``--model`` also sets the model's variable, which counts only if the user had set it.
    """
    source = click.get_current_context().get_parameter_source("model")
    is_model_set = source == click.core.ParameterSource.ENVIRONMENT
    return [*(["model"] if is_model_set else []), *(name for name in _TUNED if variable(name) in os.environ)]
