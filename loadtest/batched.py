"""``python -m loadtest.batched``: the throughput over HTTP against what the kernels alone give.

The most that the kernels can give is the throughput of a bare loop over one context of the same shape, in a
separate process. It computes the prompts together, then a step for each token, without server, queue or text.
If ``llama-batched-bench`` is given, it measures the same with its own build of llama.cpp. All take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.progress import Progress

from loadtest.compare.servers import Setting, ours, running
from service.client.api_client import served_model
from service.client.load_run import Load, run_load
from service.weights.model_files import default_model

#: In a separate process: prints seconds for prompts of ``pp`` and answers of ``tg`` tokens, ``n`` at once.
PROGRAM = """
import sys, time
from pathlib import Path
from tasks.engine.llama.context import Context, Row
from tasks.engine.llama.model import Model
n, pp, tg, threads = map(int, sys.argv[2:])
context = Context(Model(Path(sys.argv[1])), slots=n, n_ctx=pp + tg, n_batch=512, threads=threads)

def step(rows):
    context.decode(rows)
    return context.greedy(sum(row.is_output for row in rows))

def steps(rows):
    for start in range(0, len(rows), 512):
        step(rows[start:start + 512])

prompt = [Row(1 + pos, pos, seq, pos == pp - 1) for seq in range(n) for pos in range(pp)]
steps(prompt)
for seq in range(n):
    context.trim(seq, 0)
started = time.perf_counter()
steps(prompt)
for pos in range(pp, pp + tg):
    step([Row(1 + pos % 100, pos, seq, True) for seq in range(n)])
print(time.perf_counter() - started)
"""


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--at-once", default=16, show_default=True, help="Sequences at once.")
@click.option("--n-predict", default=128, show_default=True, help="Tokens of an answer.")
@click.option("--prompt-tokens", default=45, show_default=True, help="Tokens of a prompt, in the bare loops.")
@click.option("--threads", default=2, show_default=True, help="Compute threads.")
@click.option("--rounds", default=5, show_default=True, help="Rounds.")
@click.option(
    "--llama-batched-bench", "binary", type=click.Path(path_type=Path), help="Its binary, if it is here."
)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    model: Path | None,
    at_once: int,
    n_predict: int,
    prompt_tokens: int,
    threads: int,
    rounds: int,
    binary: Path | None,
) -> None:
    """Compare the server's throughput with the kernels' limit."""
    path = model or default_model()
    shape = (at_once, prompt_tokens, n_predict, threads)
    contenders: dict[str, Callable[[], float]] = {
        "over HTTP": lambda: _served(Setting(path, 1024, at_once, threads), n_predict),
        "bare loop": lambda: at_once * n_predict / _bare_loop_s(path, shape),
    }
    if binary is not None:
        contenders["llama-batched-bench"] = lambda: (
            at_once * n_predict / _batched_bench_s(binary, path, shape)
        )
    for line in _report(dict(_rounds(contenders, rounds))):
        click.echo(line)


def _rounds(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Iterator[tuple[str, list[float]]]:
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    with Progress(transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(contenders))
        for number in range(rounds):
            for name in contenders if number % 2 == 0 else reversed(list(contenders)):
                progress.update(task, description=f"round {number + 1}/{rounds}, {name}")
                speeds[name].append(contenders[name]())
                progress.advance(task)
    yield from speeds.items()


def _report(speeds: Mapping[str, Sequence[float]]) -> Iterator[str]:
    first, *others = speeds
    for name, values in speeds.items():
        yield f"{name}: {statistics.median(values):.0f} tok/s ({min(values):.0f} to {max(values):.0f})"
    for name in others:
        ratios = [a / b for a, b in zip(speeds[first], speeds[name], strict=True)]
        yield f"{first} / {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _served(setting: Setting, n_predict: int) -> float:
    """Tokens per second of two waves over HTTP; the second wave fills the gaps of the first."""
    with running(ours(setting, 1)) as service:
        name = served_model(service.url)
        run_load(service.url, name, Load(2, 2, 8))
        load = Load(2 * setting.slots, setting.slots, n_predict)
        return run_load(service.url, name, load).tokens_per_second


def _bare_loop_s(path: Path, shape: Sequence[int]) -> float:
    command = [sys.executable, "-c", PROGRAM, str(path), *map(str, shape)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _batched_bench_s(binary: Path, path: Path, shape: Sequence[int]) -> float:
    at_once, prompt, answer, threads = shape
    command = [str(binary), "-m", str(path), "-c", str(at_once * (prompt + answer)), "-t", str(threads)]
    command += ["-tb", str(threads), "-npp", str(prompt), "-ntg", str(answer), "-npl", str(at_once)]
    env = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
    done = subprocess.run(
        [*command, "--output-format", "jsonl"], capture_output=True, text=True, check=True, env=env
    )
    told = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return float(json.loads(told)["t"])


if __name__ == "__main__":
    main()
