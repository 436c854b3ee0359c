"""``top``: rates and percentiles from snapshots, and how they look."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from service.cli.snapshot import ChildRow, History, RequestRow, Snapshot, percentile
from service.cli.top import top
from service.cli.top_view import BAR, sparkline, timeline, view

pytestmark = pytest.mark.unit

RAW: dict[str, Any] = {
    "id": "chatcmpl-0123456789abcdef",
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
ROW = RequestRow.of(RAW)
SNAPSHOT = Snapshot(110.0, 3, 8, 2, 100, 5, 1, (ChildRow("w@host/7", "m", 4, 2),), (ROW,))


def at(time: float, num_tokens: int) -> Snapshot:
    return replace(SNAPSHOT, time=time, num_tokens=num_tokens)


def history(*snapshots: Snapshot) -> History:
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


def test_percentiles_are_nearest_ranks_of_what_there_is() -> None:
    assert percentile([], 0.5) is None
    assert percentile([0.0, 3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.95) == 95


def test_only_fresh_answers_count() -> None:
    assert SNAPSHOT.fresh == [ROW]
    assert replace(SNAPSHOT, time=200.0).fresh == []
    assert replace(SNAPSHOT, recent=(replace(ROW, num_tokens=0),)).fresh == []


def test_a_time_line_has_each_phase_to_scale() -> None:
    assert ROW.other_ms == 500.0
    line = timeline(ROW, ROW.e2e_ms).plain
    assert [line.count(block) for block in "░·▓█"] == [BAR // 4, BAR // 8, BAR // 8 + 1, BAR // 2]
    assert len(timeline(ROW, 2 * ROW.e2e_ms).plain) == BAR // 2


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
