"""``python -m loadtest.cpu``: processor time per token, by process, and how much of it is not llama.cpp's.

In a child, the engine's thread and its helpers compute; they are the threads that used most time. Their work
in Python between steps counts as llama.cpp's time here; everything else counts as ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from rich.progress import track

from loadtest.compare.servers import Running, Setting, ours, running
from service.client.api_client import served_model
from service.client.load_run import Load, run_load
from service.weights.model_files import default_model

COMPUTE = "children, computing threads"
OTHER = "children, other threads"
#: Part → a word in its command.
PARTS = {"API": "gunicorn", "Celery's parent": "celery", "Valkey": "valkey"}
REST = "supervisor and keeper"


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--at-once", default=16, show_default=True, help="Requests at once.")
@click.option("--requests", default=48, show_default=True, help="Requests of a round.")
@click.option("--n-predict", default=128, show_default=True, help="Tokens of an answer.")
@click.option("--threads", default=2, show_default=True, help="Compute threads of the child.")
@click.option("--rounds", default=5, show_default=True, help="Rounds.")
def main(  # noqa: PLR0913, PLR0917 - one for each option
    model: Path | None, at_once: int, requests: int, n_predict: int, threads: int, rounds: int
) -> None:
    """Measure microseconds of processor time per generated token."""
    setting = Setting(model or default_model(), n_ctx=1024, slots=16, threads=threads)
    with running(ours(setting, 1)) as service:
        name = served_model(service.url)
        run_load(service.url, name, Load(at_once, at_once, 16))
        found = [
            _per_token(service, name, Load(requests, at_once, n_predict), threads)
            for _ in track(range(rounds), "measuring", transient=True)
        ]
    for line in report(found):
        click.echo(line)


@dataclass(frozen=True, slots=True)
class Threads:
    """Processor seconds that a process's threads have used so far; ``part`` is the process's part."""

    part: str
    seconds: Mapping[int, float]


def split(before: Sequence[Threads], after: Sequence[Threads], num_computing: int) -> dict[str, float]:
    """Seconds of each part between two readings; a child's ``num_computing`` busiest threads are separate."""
    spent = dict.fromkeys((*PARTS, REST, OTHER, COMPUTE), 0.0)
    for then, now in zip(before, after, strict=True):
        grown = sorted((s - then.seconds.get(t, 0.0) for t, s in now.seconds.items()), reverse=True)
        computing = num_computing if now.part == OTHER else 0
        spent[COMPUTE] += sum(grown[:computing])
        spent[now.part] += sum(grown[computing:])
    return spent


def report(found: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Medians of the rounds, in microseconds per token."""
    for part in found[0]:
        yield f"{part}: {statistics.median(round_[part] for round_ in found):.0f} µs/token"
    outside = [sum(us for part, us in round_.items() if part != COMPUTE) for round_ in found]
    yield (
        f"outside the computing threads: {statistics.median(outside):.0f} µs/token "
        f"({min(outside):.0f} to {max(outside):.0f})"
    )


def _per_token(service: Running, name: str, load: Load, threads: int) -> dict[str, float]:
    before = _look(service)
    summary = run_load(service.url, name, load)
    spent = split(before, _look(service), threads)
    return {part: seconds / summary.num_tokens * 1e6 for part, seconds in spent.items()}


def _look(service: Running) -> list[Threads]:
    family = (service.process, *service.process.children(recursive=True))
    return [
        Threads(_part(process), {t.id: _seconds(process, t.id) for t in process.threads()})
        for process in family
    ]


def _seconds(process: psutil.Process, thread: int) -> float:
    """A thread's seconds from ``schedstat`` (ns); the usual 10 ms ticks are too coarse for short work."""
    try:
        return int(Path(f"/proc/{process.pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:  # the thread has ended
        return 0.0


def _part(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    part = next((name for name, word in PARTS.items() if word in command), REST)
    parent = process.parent()
    is_child = part == "Celery's parent" and parent is not None and "celery" in " ".join(parent.cmdline())
    return OTHER if is_child else part


if __name__ == "__main__":
    main()
