"""Draws the screen of ``top``."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from service.top.rates import History, e2e_ms, fresh, other_ms
from tasks.contract.percentile import percentile
from tasks.contract.status import Child, FinishedRequest, Status

#: Cells of the longest time line; of the columns beside it; of the columns that need a wide terminal.
BAR = 36
BESIDE, EXTRA = 54, 20
#: Cells of the line of rates.
RATES = 24
LEVELS = "▁▂▃▄▅▆▇█"
#: Phase of a request, in the order of time → its block and colour; the blocks differ even without colours.
PHASES = {
    "queue": ("░", "yellow"),
    "other": ("·", "bright_black"),
    "prefill": ("▓", "magenta"),
    "decode": ("█", "green"),
}


def view(
    status: Status, history: History, size: tuple[int, int], problem: str | None = None
) -> RenderableType:
    """The whole screen, for ``size``: cells of a line, and the number of recent requests.

    ``problem`` says why there is no newer status.
    """
    width, num_rows = size
    parts: list[RenderableType] = [_figures(status, history), "", _children(status.children), ""]
    parts += (_legend(), _recent(status.recent[: max(num_rows, 0)], width))
    if problem is not None:
        parts.insert(0, Text(f"{problem} Asking again …", style="bold red"))
    return Group(*parts)


def _figures(status: Status, history: History) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    answered, totals, models = fresh(status), status.totals, status.models
    slots = sum(child.slots for child in status.children)
    busy = sum(child.busy for child in status.children)
    ttft = [each.ttft_ms for each in answered]
    table.add_row(
        "waiting",
        _gauge(sum(m.waiting for m in models), sum(m.cap for m in models)),
        "tokens a second",
        _rate(history),
    )
    table.add_row("slots busy", _gauge(busy, slots), "first token, p50 · p95", _pair(ttft, ttft))
    between = [each.itl_ms for each in answered], [each.itl_p95_ms for each in answered]
    table.add_row(
        "running", str(sum(model.running for model in models)), "between tokens, p50 · p95", _pair(*between)
    )
    counts = f"{sum(totals.requests.values())} · {totals.generated_tokens} tokens"
    table.add_row("refused", str(sum(totals.refused.values())), "finished", counts)
    return table


def _gauge(value: int, most: int) -> Text:
    filled = round(10 * value / most) if most else 0
    style = "red" if most and value >= most else "green"
    return Text.assemble((f"{'█' * filled}{'░' * (10 - filled)}", style), f" {value} of {most}")


def _rate(history: History) -> Text:
    now = history.tokens_per_s
    return Text.assemble(
        "-" if now is None else f"{now:.1f}  ", (sparkline(list(history.rates)[-RATES:]), "green")
    )


def sparkline(values: list[float]) -> str:
    """The values as a line of blocks; the largest value has the highest block."""
    most = max(values, default=0.0) or 1.0
    return "".join(LEVELS[round(value / most * (len(LEVELS) - 1))] for value in values)


def _pair(middle: list[float], high: list[float]) -> str:
    found = percentile(filter(None, middle), 0.5), percentile(filter(None, high), 0.95)
    return " · ".join(duration(each or None) for each in found)


def duration(ms: float | None) -> str:
    """Milliseconds as text, in ms or s."""
    if ms is None:
        return "-"
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _children(children: tuple[Child, ...]) -> RenderableType:
    if not children:
        return Text("No worker holds a model. Requests wait until one comes.", style="yellow")
    table = Table("worker/child", "model", "slots", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for child in children:
        slots = Text.assemble(("■" * child.busy, "green"), "□" * (child.slots - child.busy))
        table.add_row(child.id, child.model, slots)
    return table


def _legend() -> Text:
    return Text.assemble(
        "recent requests  ", *((f"{block} {name}  ", style) for name, (block, style) in PHASES.items())
    )


def _recent(rows: tuple[FinishedRequest, ...], width: int) -> Table:
    is_wide = width >= BESIDE + EXTRA + BAR
    cells = min(BAR, max(8, width - BESIDE))
    names = ["request", "state", "tokens", "time line", "first token", "in all"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names + ["attempts", "finished"] * is_wide:
        is_text = name in ("request", "state", "time line")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    longest = max(map(e2e_ms, rows), default=1.0)
    for row in rows:
        table.add_row(*_shown(row, timeline(row, longest, cells))[: len(table.columns)])
    return table


def _shown(row: FinishedRequest, line: Text) -> list[RenderableType]:
    return [
        row.id[-8:],
        Text(row.state, style="" if row.state == "succeeded" else "red"),
        str(row.generated_tokens),
        line,
        duration(row.ttft_ms or None),
        duration(e2e_ms(row)),
        str(row.attempts),
        time.strftime("%H:%M:%S", time.localtime(row.finished)),
    ]


def timeline(row: FinishedRequest, longest_ms: float, most: int = BAR) -> Text:
    """A request's phases as a line; a request that took ``longest_ms`` has ``most`` cells."""
    scale, spent, cells, line = most / longest_ms, 0.0, 0, Text()
    for phase, (block, colour) in PHASES.items():
        spent += other_ms(row) if phase == "other" else getattr(row, f"{phase}_ms")
        until = round(spent * scale)
        line.append(block * (until - cells), colour)
        cells = max(cells, until)
    return line
