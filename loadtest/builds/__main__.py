"""The command: every measurement has a separate process, and the builds take turns."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from loadtest.bare.build import Build, BuildError, parse_builds
from loadtest.builds.busy import one_core_busy
from loadtest.builds.report import Measurement, Report, as_json, markdown
from loadtest.compare.told import build_of
from service.bench.encodings import all_encoded
from service.cli.common.terminal import progress_bar
from service.cli.model import shown_progress


@click.command()
@click.option(
    "--build",
    "builds",
    multiple=True,
    required=True,
    help="LABEL=FOLDER with libllama.so, or LABEL:fa=off,kv=q8_0,repack=off,variant=icelake for one of "
    "these used another way (any part of it). The first is compared with the others.",
)
@click.option(
    "--model", type=click.Path(path_type=Path), default=None, help="GGUF file; default: the fetched one."
)
@click.option(
    "--encoding", "encodings", multiple=True, help="Instead of --model: the default model so encoded."
)
@click.option("--loads", default="1,4,8,16", show_default=True, help="Sequences at once, comma-separated.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; builds take turns in each.")
@click.option("--threads", default=2, show_default=True, help="Compute threads.")
@click.option("--prompt-tokens", default=64, show_default=True, help="Tokens of a prompt.")
@click.option("--n-predict", default=64, show_default=True, help="Steps of decode.")
@click.option("--busy", is_flag=True, help="Another program computes on one core meanwhile.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for builds.md and builds.json.",
)
def main(
    out: Path | None, builds: tuple[str, ...], model: Path | None, encodings: tuple[str, ...], **options: Any
) -> None:
    """Compare builds of llama.cpp's libraries, and ways to use them, by prefill and decode alone."""
    with shown_progress() as progress:
        files = [file.path for file in all_encoded(model, encodings, progress)]
    try:
        report = measure(Plan(parse_builds(builds), files, **options))
    except BuildError as error:
        raise click.ClickException(str(error)) from error
    click.echo(markdown(report))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "builds.md").write_text(markdown(report))
        (out / "builds.json").write_text(as_json(report))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure; see the command's options."""

    builds: tuple[Build, ...]
    files: list[Path]
    loads: str
    rounds: int
    threads: int
    prompt_tokens: int
    n_predict: int
    busy: bool

    @property
    def steps(self) -> Iterator[tuple[int, Path, int, Build]]:
        """Round, file, sequences at once and build; builds that are compared follow each other."""
        for number in range(self.rounds):
            for path in self.files:
                for at_once in map(int, self.loads.split(",")):
                    for build in self.builds if number % 2 == 0 else reversed(self.builds):
                        yield number, path, at_once, build

    def question(self, path: Path, at_once: int) -> dict[str, Any]:
        """The question for a process."""
        shape = {"prompt_tokens": self.prompt_tokens, "n_predict": self.n_predict, "threads": self.threads}
        return {"model": str(path), "at_once": at_once, **shape}


def measure(plan: Plan) -> Report:
    """Measure everything. Raises :class:`BuildError` when a build can't be used."""
    told = {build.label: "" for build in plan.builds}
    steps, measurements = list(plan.steps), []
    with progress_bar() as progress:
        task = progress.add_task("measuring", total=len(steps))
        for number, path, at_once, build in steps:
            progress.update(task, description=f"round {number + 1}/{plan.rounds}, {build.label}")
            with one_core_busy() if plan.busy else nullcontext():
                answer = build.ask("loadtest.bare.speed", plan.question(path, at_once))
            told[build.label] = describe(build, answer["kernels"], plan.builds)
            speeds = answer["prefill"], answer["decode"]
            measurements.append(Measurement(number, build.label, path.name, at_once, *speeds))
            progress.advance(task)
    command = shlex.join(["python", "-m", "loadtest.builds", *sys.argv[1:]])
    return Report(command, plan.busy, told, tuple(measurements))


def describe(build: Build, kernels: dict[str, str], among: Sequence[Build]) -> str:
    """Compiler and flags, or the first of ``among`` with the same libraries; and the kernels used."""
    first = next(other for other in among if other.folder == build.folder)
    libraries = build_of(build.folder) if first is build else f"the libraries of {first.label}"
    used = f"{kernels['file']} ({kernels['features']}), weights in {kernels['buffers']}"
    return f"{libraries}; {used}"


if __name__ == "__main__":
    main()
