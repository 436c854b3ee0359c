"""The results of the rounds, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from loadtest.tables import comparison
from service.bench.machine import machine
from tasks.engine.kept import kernel_features


@dataclass(frozen=True, slots=True)
class Measurement:
    """One process's figures, in tokens per second, of ``at_once`` sequences."""

    round: int
    build: str
    file: str
    at_once: int
    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements and how they were made; ``builds`` describes each build and its kernels.

    The first build is compared with the others.
    """

    command: str
    is_busy: bool
    builds: Mapping[str, str]
    measurements: tuple[Measurement, ...]


def markdown(report: Report) -> str:
    """A table of decode and one of prefill for each file."""
    busy = "; another program computes on one core" if report.is_busy else ""
    lines = [f"`{report.command}`", "", f"{machine()}; {', '.join(kernel_features())}{busy}.", ""]
    lines += [f"- {label}: {told}" for label, told in report.builds.items()]
    for file in dict.fromkeys(m.file for m in report.measurements):
        for title in ("decode", "prefill"):
            lines += ["", f"### {file}: {title}, tok/s", ""]
            lines += comparison("at once", list(report.builds), _rows(report, file, title))
    return "\n".join(lines) + "\n"


def _rows(report: Report, file: str, figure: str) -> dict[str, dict[str, list[float]]]:
    """For each load, the figures of each build in the rounds' order."""
    found = [m for m in report.measurements if m.file == file]
    return {
        str(at_once): {
            label: _figures([m for m in found if (m.build, m.at_once) == (label, at_once)], figure)
            for label in report.builds
        }
        for at_once in sorted({m.at_once for m in found})
    }


def _figures(measurements: list[Measurement], figure: str) -> list[float]:
    return [getattr(m, figure) for m in sorted(measurements, key=lambda m: m.round)]


def as_json(report: Report) -> str:
    """Everything measured."""
    about = {"machine": machine(), "features": kernel_features()}
    return json.dumps({**about, **asdict(report)}, indent=1)
