"""``python -m loadtest.memory``: whether children share the model's weights.

Compares the proportional set size (PSS) of N children with weights + N x (one context's buffers). A separate
process measures both terms. The PSS of the children's parent is shown, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import psutil

from loadtest.compare.servers import Running, Setting, ours, running
from service.weights.model_files import default_model

#: Loads the weights, then a context, and prints the growth of this process's own memory after each.
PROGRAM = """
import sys, psutil
from pathlib import Path
from tasks.engine.llama.context import Context, Row
from tasks.engine.llama.model import Model
slots, n_ctx, threads = map(int, sys.argv[2:])
own = lambda: psutil.Process().memory_full_info().pss
start = own()
model = Model(Path(sys.argv[1]))
loaded = own()
context = Context(model, slots=slots, n_ctx=n_ctx, n_batch=512, threads=threads)
tokens = model.tokenize("word " * 300, add_special=False)[:256]
context.decode([Row(t, i, 0, i == len(tokens) - 1) for i, t in enumerate(tokens)])
# Weights that are mapped from the file count once they are read.
print(max(loaded - start, Path(sys.argv[1]).stat().st_size), own() - start)
"""


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--workers", default=2, show_default=True, help="Children.")
@click.option("--slots", default=8, show_default=True, help="Sequences of each child.")
@click.option("--n-ctx", default=1024, show_default=True, help="Context of one request.")
def main(model: Path | None, workers: int, slots: int, n_ctx: int) -> None:
    """Measure the memory of a worker's processes."""
    path = model or default_model()
    weights, alone = _alone(path, slots, n_ctx)
    setting = Setting(path, n_ctx, workers * slots, threads=workers)
    with running(ours(setting, workers, ("--oversubscribe",))) as service:
        children, parent = _worker_memory(service)
    bound = 1.1 * weights + workers * (alone - weights)
    click.echo(f"weights {weights:.0f} MiB, one context's buffers {alone - weights:.0f} MiB")
    click.echo(f"{workers} children {children:.0f} MiB (PSS), their parent {parent:.0f} MiB")
    click.echo(f"bound: 1.1 x weights + {workers} x buffers = {bound:.0f} MiB")
    click.echo(f"measured / bound: {children / bound:.2f}")


def _alone(path: Path, slots: int, n_ctx: int) -> tuple[float, float]:
    """MiB of the weights, and of the weights with one context, measured in a separate process."""
    command = [sys.executable, "-c", PROGRAM, str(path), str(slots), str(n_ctx), "1"]
    weights, alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(weights) / 2**20, int(alone) / 2**20


def _worker_memory(service: Running) -> tuple[float, float]:
    """MiB of the Celery children, and of their parent."""
    celery = next(p for p in service.process.children() if any("celery" in part for part in p.cmdline()))
    family = [celery, *celery.children()]
    parent, *children = (_pss(process) for process in family)
    return sum(children), parent


def _pss(process: psutil.Process) -> float:
    return float(process.memory_full_info().pss) / 2**20


if __name__ == "__main__":
    main()
