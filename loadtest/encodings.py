"""``python -m loadtest.encodings``: what each encoding of the default model costs and is worth.

Re-encodes the packaged file, then measures perplexity on technical English (the language reference that
comes with CPython) and the speed of one context. Encodings take turns, so that noise affects all equally.
"""

from __future__ import annotations

import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from rich.progress import track

from service.weights.model_files import default_model
from tasks.engine.llama.context import Context, Row
from tasks.engine.llama.model import Model

WINDOW, NUM_WINDOWS = 512, 8
SEQUENCES = (1, 4, 8, 16)


@click.command()
@click.option("--encodings", default="Q4_1,Q8_0,Q4_K_M,IQ4_NL,Q4_0,F16", show_default=True)
@click.option("--threads", default=2, show_default=True, help="Compute threads.")
@click.option("--rounds", default=3, show_default=True, help="Measurements of the speed.")
def main(encodings: str, threads: int, rounds: int) -> None:
    """Compare encodings of the default model, as a Markdown table."""
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: _encoded(name, Path(folder), threads) for name in track(encodings.split(","), "encoding")
        }
        perplexities = {name: perplexity(Model(path), threads) for name, path in files.items()}
        speeds: dict[str, list[list[float]]] = {name: [] for name in files}
        for _ in track(range(rounds), "measuring"):
            for name, path in files.items():
                speeds[name].append(list(_speeds(Model(path), threads)))
        sizes = {name: path.stat().st_size / 1e6 for name, path in files.items()}
    click.echo(
        "| encoding | MB | perplexity | prefill tok/s | " + " | ".join(f"x{n}" for n in SEQUENCES) + " |"
    )
    click.echo("|---|" + "---:|" * (3 + len(SEQUENCES)))
    for name in files:
        medians = [statistics.median(column) for column in zip(*speeds[name], strict=True)]
        cells = [f"{sizes[name]:.0f}", f"{perplexities[name]:.1f}", *(f"{value:.0f}" for value in medians)]
        click.echo(f"| {name} | " + " | ".join(cells) + " |")


def _encoded(name: str, folder: Path, threads: int) -> Path:
    source = default_model("Q4_1")
    if not source.is_file():
        raise click.ClickException("run `inference-server model fetch --encoding Q4_1` first")
    if name == "Q4_1":
        return source
    target = folder / f"{name}.gguf"
    command = [sys.executable, "-P", "-m", "tasks.engine.llama.quantize", str(source), str(target), name]
    subprocess.run([*command, "--threads", str(threads)], check=True)
    return target


def perplexity(model: Model, threads: int) -> float:
    """Exponential of the mean negative log-likelihood, of each window's second half given its first."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    tokens = model.tokenize(text[: WINDOW * NUM_WINDOWS * 8], add_special=False)
    context = Context(model, slots=1, n_ctx=WINDOW, n_batch=WINDOW, threads=threads)
    losses = [
        loss
        for start in range(0, WINDOW * NUM_WINDOWS, WINDOW)
        for loss in _losses(context, tokens[start : start + WINDOW])
    ]
    context.close()
    return float(np.exp(np.mean(losses)))


def _losses(context: Context, tokens: list[int]) -> Iterator[float]:
    half = len(tokens) // 2
    context.trim(0, 0)
    context.decode([Row(token, pos, 0, pos >= half) for pos, token in enumerate(tokens)])
    logits = context.logits(len(tokens) - half)[:-1].astype(np.float64)
    peak = logits.max(axis=1)
    norm = np.log(np.exp(logits - peak[:, None]).sum(axis=1)) + peak
    targets = tokens[half + 1 :]
    yield from norm - logits[np.arange(len(targets)), targets]


def _speeds(model: Model, threads: int) -> Iterator[float]:
    """Tokens per second of a prefill of 256 tokens, then of decoding :data:`SEQUENCES` at once."""
    context = Context(model, slots=max(SEQUENCES), n_ctx=512, n_batch=512, threads=threads)
    prompt = model.tokenize("word " * 300, add_special=False)[:256]
    yield 256 / _timed(context, [Row(token, pos, 0, pos == 255) for pos, token in enumerate(prompt)])
    for seq in range(1, max(SEQUENCES)):
        context.decode([Row(token, pos, seq, pos == 63) for pos, token in enumerate(prompt[:64])])
    context.trim(0, 64)
    for count in SEQUENCES:
        times = [
            _timed(context, [Row(prompt[pos], pos, seq, True) for seq in range(count)])
            for pos in range(64, 80)
        ]
        for seq in range(count):
            context.trim(seq, 64)
        yield count / statistics.median(times)
    context.close()


def _timed(context: Context, rows: list[Row]) -> float:
    started = time.perf_counter()
    context.decode(rows)
    context.greedy(sum(row.is_output for row in rows))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
