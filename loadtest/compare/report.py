"""The results of the rounds, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from loadtest import tables
from service.bench.machine import machine
from service.client.load_run import Summary
from tasks.engine.kept import kernel_features


@dataclass(frozen=True, slots=True)
class Measurement:
    """One load on one server in one round; ``cpu_s`` is the server's processor time, memory in MiB."""

    round: int
    server: str
    concurrency: int
    summary: Summary
    cpu_s: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class About:
    """A server's version, its llama.cpp's compiler and flags, and its kernels."""

    version: str
    build: str
    kernels: str

    def __str__(self) -> str:
        return f"{self.version}; llama.cpp: {self.build}; kernels: {self.kernels}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measurements, and how they were made; the first server is compared with the others."""

    command: str
    file: str
    servers: dict[str, About]
    measurements: tuple[Measurement, ...]

    def values(self, server: str, concurrency: int, of: Callable[[Measurement], float]) -> list[float]:
        """One figure of every round, in the rounds' order."""
        found = [m for m in self.measurements if (m.server, m.concurrency) == (server, concurrency)]
        return [of(m) for m in sorted(found, key=lambda m: m.round)]


def throughput(m: Measurement) -> float:
    """Aggregate tokens per second."""
    return m.summary.tokens_per_second


def ttft(m: Measurement) -> float:
    """Median time to first token in milliseconds."""
    return m.summary.ttft_p50_ms


def cpu_us_per_token(m: Measurement) -> float:
    """The server's processor time per generated token, in microseconds."""
    return m.cpu_s / m.summary.num_tokens * 1e6


def markdown(comparison: Comparison) -> str:
    """The report: a table for each figure, medians with their range, and ratios pair by pair."""
    names = list(comparison.servers)
    lines = [
        f"`{comparison.command}`",
        "",
        f"{machine()}; {', '.join(kernel_features())}; file `{comparison.file}`.",
        "",
        *(f"- {name}: {about}" for name, about in comparison.servers.items()),
    ]
    for title, of in (
        ("Aggregate throughput, tok/s", throughput),
        ("Time to first token p50, ms", ttft),
        ("Processor time per token, µs", cpu_us_per_token),
        ("Memory (PSS), MiB", lambda m: m.memory_mib),
    ):
        lines += ["", f"### {title}", "", *_table(comparison, names, of)]
    return "\n".join(lines) + "\n"


def _table(comparison: Comparison, names: Sequence[str], of: Callable[[Measurement], float]) -> list[str]:
    loads = sorted({m.concurrency for m in comparison.measurements})
    rows = {str(load): {name: comparison.values(name, load, of) for name in names} for load in loads}
    return tables.comparison("at once", names, rows)


def as_json(comparison: Comparison) -> str:
    """Everything measured."""
    about = {"machine": machine(), "features": kernel_features()}
    return json.dumps({**about, **asdict(comparison)}, indent=1)
