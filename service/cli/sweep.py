"""``inference-server bench --sweep``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from service.cli.common.options import read_settings
from service.cli.common.terminal import console, progress_bar
from service.client.api_client import ClientError

if TYPE_CHECKING:
    from service.bench.cases import Case, Sweep
    from service.bench.report import Row
    from service.bench.run_case import Result

#: Defaults of a whole sweep, and of a sweep with ``--quick``.
_ENCODINGS, _LOADS, _N_PREDICT = "Q4_0,Q4_K_M,Q8_0,F16", "1,4,8,16", 128
_QUICK_LOADS, _QUICK_N_PREDICT = "1,4", 16


def sweep_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the options of a sweep."""
    for option in reversed(
        (
            click.option(
                "--shapes", help="For --sweep, WORKERSxTHREADS,...; default: all that use every core."
            ),
            click.option("--encodings", help=f"For --sweep; the model re-encoded; default: {_ENCODINGS}."),
            click.option("--loads", help=f"For --sweep, requests at once; default: {_LOADS}."),
            click.option(
                "--quick", is_flag=True, help="A small sweep: the file as it is, two loads, short answers."
            ),
            click.option(
                "--out",
                type=click.Path(file_okay=False, path_type=Path),
                help="For --sweep: folder for sweep.md, sweep.csv, sweep.json and plots.",
            ),
        )
    ):
        function = option(function)
    return function


def sweep(options: Mapping[str, Any], *, as_json: bool) -> None:
    """Measure every row, print the table and, with ``out``, write it to files."""
    from service.bench import report

    out: Path | None = options["out"]
    if out is not None:
        _require_folder(out)
    rows = [report.Row.of(result) for result in _results(_planned(options))]
    command = shlex.join(["inference-server", *sys.argv[1:]])
    if as_json:
        click.echo(report.as_json(rows, command), nl=False)
    else:
        _print_table(rows)
    if out is not None:
        _write(rows, command, out)


def _planned(options: Mapping[str, Any]) -> Sweep:
    from service.bench.cases import Sweep, names, parse_counts, parse_shapes, shapes_for
    from service.bench.encodings import all_encoded
    from service.cli.model import shown_progress
    from tasks.settings import WorkerSettings, available_cores

    quick = options["quick"]
    encodings = names(options["encodings"] or ("" if quick else _ENCODINGS))
    try:
        shapes = parse_shapes(options["shapes"]) if options["shapes"] else shapes_for(available_cores())
        loads = parse_counts(options["loads"] or (_QUICK_LOADS if quick else _LOADS))
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    with shown_progress() as progress:
        models = all_encoded(read_settings(WorkerSettings).model, encodings, progress)
    return Sweep(models, shapes, loads, options["n_predict"] or (_QUICK_N_PREDICT if quick else _N_PREDICT))


def _results(plan: Sweep) -> Iterator[Result]:
    cases = list(plan.cases())
    total = len(cases) * sum(load.num_requests for load in plan.loads())
    with progress_bar() as bar:
        task = bar.add_task("starting", total=total)
        for case in cases:
            yield from _measured(
                case, plan, lambda told, done: bar.update(task, description=told, advance=done)
            )


def _measured(case: Case, plan: Sweep, tell: Callable[[str, int], None]) -> Iterator[Result]:
    from service.cli.common.case_service import serving

    tell(f"{case}: starting", 0)
    try:
        with serving(case) as service:
            for load in plan.loads():
                told = f"{case.model.encoding} {case.shape}, {load.concurrency} at once"
                tell(told, 0)
                yield service.measure(load, lambda told=told: tell(told, 1))  # type: ignore[misc]
    except ClientError as error:
        raise click.ClickException(f"{case}: {error}") from error


def _print_table(rows: list[Row]) -> None:
    from rich.table import Column, Table

    from service.bench.report import HEAD, cells

    table = Table(*(Column(name, justify="left" if n < 2 else "right") for n, name in enumerate(HEAD)))
    for row in rows:
        table.add_row(*cells(row))
    console().print(table)


def _require_folder(out: Path) -> None:
    """Check the folder before an hour of measuring, not after."""
    from service.bench.plots import MISSING, can_plot

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"--out: can't make {out}: {error.strerror}.") from error
    if not can_plot():
        click.echo(MISSING, err=True)


def _write(rows: list[Row], command: str, out: Path) -> None:
    from service.bench import plots, report

    try:
        (out / "sweep.md").write_text(report.markdown(rows, command))
        (out / "sweep.csv").write_text(report.as_csv(rows))
        (out / "sweep.json").write_text(report.as_json(rows, command))
        if plots.can_plot():
            plots.plot(rows, out)
    except OSError as error:
        raise click.ClickException(f"--out: can't write to {out}: {error.strerror}.") from error
    click.echo(f"Written: {', '.join(sorted(str(path) for path in out.iterdir()))}", err=True)
