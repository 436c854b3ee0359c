"""A sweep's plots: throughput and latency against concurrency, a line for each service."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.bench.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Message if matplotlib is missing.
MISSING = "No plots: they need matplotlib, pip install 'concurrent-inference-server[plots]'."


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot(rows: Sequence[Row], folder: Path) -> tuple[Path, ...]:
    """Write ``throughput.svg`` and ``latency.svg`` into ``folder``."""
    return _throughput(rows, folder / "throughput.svg"), _latency(rows, folder / "latency.svg")


def _throughput(rows: Sequence[Row], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    _lines(axes, rows, "tokens_per_second", "tokens per second, all requests together")
    axes.legend()
    figure.savefig(path)
    return path


def _latency(rows: Sequence[Row], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, rows, "ttft_p95_ms", None)
    _lines(left, rows, "ttft_p50_ms", "time to first token, p50 and (dashed) p95, ms")
    _lines(right, rows, "itl_mean_ms", "between tokens, mean, ms")
    right.legend()
    figure.savefig(path)
    return path


def _lines(axes: Axes, rows: Sequence[Row], figure: str, label: str | None) -> None:
    """Draw one line per series; without a ``label``, dashed."""
    for number, series in enumerate(dict.fromkeys(row.series for row in rows)):
        points = [(row.concurrency, getattr(row, figure)) for row in rows if row.series == series]
        style: dict[str, Any] = {"marker": "o", "label": series} if label else {"linestyle": "--"}
        axes.plot(*zip(*points, strict=True), color=f"C{number}", **style)
    if label:
        ticks = sorted({row.concurrency for row in rows})
        axes.set(xlabel="requests at once", ylabel=label, ylim=(0, None), xticks=ticks)
        axes.grid(alpha=0.3)
