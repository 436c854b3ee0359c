"""A sweep's results as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

from service.bench.machine import machine
from service.bench.run_case import Result


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table; times are in milliseconds."""

    encoding: str
    workers: int
    threads: int
    slots: int
    concurrency: int
    tokens_per_second: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_mean_ms: float
    memory_mib: float
    num_failed: int

    @classmethod
    def of(cls, result: Result) -> Row:
        """The figures of a result, rounded to useful digits."""
        case, summary = result.case, result.summary
        return cls(
            encoding=case.model.encoding,
            workers=case.workers,
            threads=case.threads,
            slots=case.slots,
            concurrency=result.concurrency,
            tokens_per_second=round(summary.tokens_per_second, 1),
            ttft_p50_ms=round(summary.ttft_p50_ms, 1),
            ttft_p95_ms=round(summary.ttft_p95_ms, 1),
            itl_mean_ms=round(summary.itl_mean_ms, 2),
            memory_mib=round(result.memory_mib, 1),
            num_failed=summary.num_failed,
        )

    @property
    def series(self) -> str:
        """The name that all loads on the same service share."""
        return f"{self.encoding} {self.workers}x{self.threads}"


HEAD = (
    "encoding",
    "workers x threads",
    "at once",
    "tok/s",
    "TTFT p50, ms",
    "TTFT p95, ms",
    "ITL mean, ms",
    "MiB",
)
_TEXTS = 2


def cells(row: Row) -> tuple[str, ...]:
    """A row's cells for people, in the order of :data:`HEAD`."""
    figures = (row.tokens_per_second, row.ttft_p50_ms, row.ttft_p95_ms, row.itl_mean_ms, row.memory_mib)
    shown = [f"{value:.{digits}f}" for value, digits in zip(figures, (1, 0, 0, 1, 0), strict=True)]
    return (row.encoding, f"{row.workers} x {row.threads}", str(row.concurrency), *shown)


def markdown(rows: Sequence[Row], command: str) -> str:
    """The table, with the command and the machine that measured it."""
    rule = ["---"] * _TEXTS + ["---:"] * (len(HEAD) - _TEXTS)
    lines = [HEAD, rule, *(cells(row) for row in rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"`{command}`\n\n{machine()}.\n\n{table}\n"


def as_csv(rows: Sequence[Row]) -> str:
    """The rows after a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _names(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_values(row) for row in rows)
    return out.getvalue()


def as_json(rows: Sequence[Row], command: str) -> str:
    """The rows, with the command and the machine that measured them."""
    measured = {"command": command, "machine": machine(), "rows": [_values(row) for row in rows]}
    return json.dumps(measured, indent=1) + "\n"


def _names() -> list[str]:
    return list(Row.__dataclass_fields__)


def _values(row: Row) -> dict[str, str | float]:
    return {name: getattr(row, name) for name in _names()}
