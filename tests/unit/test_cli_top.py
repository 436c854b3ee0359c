"""``top``: rates and percentiles from snapshots, and how they look."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from service.cli.top import top
from service.top.rates import History, e2e_ms, fresh, other_ms
from service.top.view import BAR, sparkline, timeline, view
from tasks.contract.status import Child, FinishedRequest, ModelStatus, Status, Totals
from tasks.contract.tolerant import read

pytestmark = pytest.mark.unit

RAW: dict[str, Any] = {
    "id": "chatcmpl-0123456789abcdef",
    "model": "m",
    "error": None,
    "prompt_tokens": 5,
    "cached_tokens": 0,
    "state": "succeeded",
    "child": "w@host/7",
    "attempts": 2,
    "created": 100.0,
    "finished": 104.0,
    "generated_tokens": 20,
    "queue_ms": 1000.0,
    "prefill_ms": 500.0,
    "decode_ms": 2000.0,
    "ttft_ms": 1600.0,
    "itl_ms": 100.0,
    "itl_p95_ms": 130.0,
}
ROW = read(FinishedRequest, RAW)
SNAPSHOT = Status(
    110.0,
    (ModelStatus("m", 512, waiting=3, cap=8, running=2),),
    (Child("w@host/7", "w@host", 7, "m", 512, 4, busy=2),),
    Totals({"succeeded": 1}, {"queue_full": 5}, 100),
    (ROW,),
)


def at(time: float, num_tokens: int) -> Status:
    return replace(SNAPSHOT, time=time, totals=replace(SNAPSHOT.totals, generated_tokens=num_tokens))


def history(*snapshots: Status) -> History:
    made = History()
    for snapshot in snapshots:
        made.add(snapshot)
    return made


def test_a_rate_needs_two_looks_and_forgets_old_ones() -> None:
    assert history(at(0, 0)).tokens_per_s is None
    assert history(at(0, 0), at(2, 30)).tokens_per_s == 15
    assert history(at(0, 0), at(10, 1000), at(15, 1050)).tokens_per_s == 10


def test_an_emptied_store_is_no_negative_rate() -> None:
    emptied = history(at(0, 500), at(1, 510), at(2, 0), at(3, 8))
    assert emptied.tokens_per_s == 8
    assert list(emptied.rates) == [10, 8]


def test_only_fresh_answers_count() -> None:
    assert fresh(SNAPSHOT) == [ROW]
    assert fresh(replace(SNAPSHOT, time=200.0)) == []
    assert fresh(replace(SNAPSHOT, recent=(replace(ROW, generated_tokens=0),))) == []


def test_a_time_line_has_each_phase_to_scale() -> None:
    assert other_ms(ROW) == 500.0
    line = timeline(ROW, e2e_ms(ROW)).plain
    assert [line.count(block) for block in "░·▓█"] == [BAR // 4, BAR // 8, BAR // 8 + 1, BAR // 2]
    assert len(timeline(ROW, 2 * e2e_ms(ROW)).plain) == BAR // 2


def test_a_sparkline_is_highest_at_the_most() -> None:
    assert sparkline([0, 7, 14]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"


def test_the_view_says_it_all() -> None:
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(view(SNAPSHOT, history(at(0, 0), at(2, 30)), (130, 5), problem="It can't be reached."))
    shown = console.export_text()
    for text in (
        "It can't be reached. Asking again",
        "3 of 8",
        "2 of 4",
        "15.0",
        "■■□□",
        "89abcdef",
        "1.6 s",
    ):
        assert text in shown


def test_a_narrow_terminal_has_the_columns_that_fit() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(view(SNAPSHOT, history(SNAPSHOT), (80, 5)))
    shown = console.export_text()
    assert "89abcdef" in shown
    assert "4.0 s" in shown
    assert "attempts" not in shown
    assert "…" not in shown


def test_no_rows_fit() -> None:
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(view(SNAPSHOT, history(SNAPSHOT), (130, -3)))
    assert "89abcdef" not in console.export_text()


def test_a_server_that_is_not_there_is_one_line() -> None:
    done = CliRunner().invoke(top, ["--once", "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert done.output.strip() == "Error: http://127.0.0.1:1 can't be reached: [Errno 111] Connection refused"
