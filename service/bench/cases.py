"""The cases to measure: shapes of a worker, encodings and loads; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.client.load_run import Load


@dataclass(frozen=True, slots=True)
class Encoded:
    """A model's file and the name of its encoding."""

    encoding: str
    path: Path


@dataclass(frozen=True, slots=True)
class Case:
    """Settings of one service: ``workers`` children, each with ``slots`` slots and ``threads`` threads."""

    model: Encoded
    workers: int
    threads: int
    slots: int

    @property
    def shape(self) -> str:
        """Workers and threads, such as ``2x1``."""
        return f"{self.workers}x{self.threads}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that give a service these settings."""
        return {
            "INFERENCE_MODEL": str(self.model.path),
            "INFERENCE_WORKERS": str(self.workers),
            "INFERENCE_THREADS": str(self.threads),
            "INFERENCE_SLOTS": str(self.slots),
        }

    def __str__(self) -> str:
        return f"{self.model.encoding} {self.shape}, {self.slots} slots each"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A table to measure: every encoding with every shape (workers, threads) at every load."""

    models: tuple[Encoded, ...]
    shapes: tuple[tuple[int, int], ...]
    concurrencies: tuple[int, ...]
    n_predict: int

    def cases(self) -> Iterator[Case]:
        """All cases; each has slots for the largest load, spread over its children."""
        for model in self.models:
            for workers, threads in self.shapes:
                yield Case(model, workers, threads, slots_each(max(self.concurrencies), workers))

    def loads(self) -> Iterator[Load]:
        """All loads; each has at least two waves and at least four requests."""
        for at_once in self.concurrencies:
            yield Load(max(4, 2 * at_once), at_once, self.n_predict)


def shapes_for(cores: int) -> tuple[tuple[int, int], ...]:
    """Every (workers, threads) that keeps ``cores`` cores busy: 1 x 4, 2 x 2 and 4 x 1 for four."""
    return tuple((workers, cores // workers) for workers in range(1, cores + 1) if cores % workers == 0)


def parse_shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Read a text such as ``1x2,2x1``. Raises ``ValueError`` that names the bad part."""
    return tuple(_shape(part.strip()) for part in text.split(","))


def parse_counts(text: str) -> tuple[int, ...]:
    """Read a text such as ``1,4,16``. Raises ``ValueError`` that names the bad part."""
    parts = [part.strip() for part in text.split(",")]
    if bad := [part for part in parts if not part.isdigit() or int(part) < 1]:
        raise ValueError(f"{bad[0]!r} is not a whole number of 1 or more")
    return tuple(int(part) for part in parts)


def slots_each(total: int, workers: int) -> int:
    """Slots of each child so that all children together have at least ``total``."""
    return -(-total // workers)


def names(text: str) -> Sequence[str]:
    """Read a text such as ``Q8_0,F16``; give each name once."""
    return tuple(dict.fromkeys(part.strip().upper() for part in text.split(",") if part.strip()))


def _shape(text: str) -> tuple[int, int]:
    workers, cross, threads = text.lower().partition("x")
    if not (cross and workers.isdigit() and threads.isdigit() and int(workers) and int(threads)):
        raise ValueError(f"{text!r} is not of the form WORKERSxTHREADS, such as 2x1")
    return int(workers), int(threads)
