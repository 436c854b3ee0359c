"""``inference-server model fetch``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from service.cli.common.terminal import console, unwinding_on_sigterm
from service.weights import model_files

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@click.group()
def model() -> None:
    """Get a model."""


@model.command()
@click.option(
    "--encoding", default=model_files.DEFAULT_ENCODING, show_default=True, help="Encoding of the weights."
)
@click.option(
    "--dest",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to put it in; default: $INFERENCE_MODELS_DIR, models/ of a checkout, or XDG's data home.",
)
def fetch(encoding: str, dest: Path | None) -> None:
    """Fetch the default model, SmolLM2-135M-Instruct, and check it."""
    path, is_new = fetch_with_progress(dest or model_files.models_dir(), encoding)
    click.echo(f"{path} is {'ready' if is_new else 'already there and complete'}.")


def fetch_with_progress(dest: Path, encoding: str) -> tuple[Path, bool]:
    """:func:`service.weights.model_files.fetch` with a progress bar; its errors become one line."""
    target = dest / f"{model_files.SMOLLM2.name}.{encoding}.gguf"
    if model_files.is_whole(target):  # before rich is imported, so that make answers at once
        return target, False
    with shown_progress() as progress:
        return model_files.fetch(dest, encoding, progress)


@contextmanager
def shown_progress() -> Iterator[model_files.Progress]:
    """Draw the progress of work on a model; its errors become one line."""
    try:
        with unwinding_on_sigterm(), _bar() as bar:
            yield _Shown(bar)
    except model_files.ModelError as error:
        raise click.ClickException(str(error)) from error


class _Shown:
    """Draws a fetch's progress, one line for each stage."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    def stage(self, text: str) -> None:
        self._finish()
        self._task = self._bar.add_task(text, total=None)

    def advance(self, done: int, total: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _finish(self) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=1, total=1)


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console(stderr=True))
