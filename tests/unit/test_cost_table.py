"""What steps cost with each number of threads, measured or interpolated; and which child measures it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.engine import kept
from tasks.engine.costs import known
from tasks.engine.costs.measure import BUDGET_S, measure
from tasks.engine.costs.shape import StepCosts
from tasks.engine.costs.shared_note import CAPACITY, SharedNote
from tasks.engine.costs.table import CostTable
from tasks.engine.costs.threads import CorePool
from tasks.engine.llama.context import Row

pytestmark = pytest.mark.unit

ONE, FOUR = StepCosts(((1, 8.0), (4, 20.0)), 4.0), StepCosts(((1, 5.0), (2, 6.0), (4, 8.0)), 1.0)
TABLE = CostTable(((1, ONE), (4, FOUR)))


def test_measured_numbers_of_threads_are_as_measured_and_others_the_nearest():
    assert TABLE.at(1) == ONE
    assert TABLE.at(4) == TABLE.at(7) == FOUR
    assert CostTable(((2, ONE), (4, FOUR))).at(1) == ONE


def test_between_them_the_shared_part_of_the_time_counts():
    costs = TABLE.at(2)
    assert dict(costs.decode) == pytest.approx({1: 6.0, 2: 8.0, 4: 12.0})
    assert costs.prefill_ms == 2.0


def test_a_table_is_read_as_it_was_written():
    assert CostTable.from_json(TABLE.to_json()) == TABLE


@pytest.mark.parametrize(
    "text", [b"", b"{", b"{}", b"[]", b'{"by_threads": []}', b'{"by_threads": [[1, 2]]}']
)
def test_anything_else_is_no_table(text: bytes):
    assert CostTable.from_json(text) is None


def in_child(action: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return pid


def test_a_childs_note_is_read_by_its_parent():
    note = SharedNote()
    assert note.read() == b""
    os.waitpid(in_child(lambda: note.write(b"a child's")), 0)
    assert note.read() == b"a child's"
    note.write(b"shorter")
    assert note.read() == b"shorter"
    with pytest.raises(ValueError, match="longer"):
        note.write(bytes(CAPACITY + 1))


@pytest.fixture
def context(tmp_path: Path) -> Any:
    path = tmp_path / "model.gguf"
    path.touch()
    return SimpleNamespace(model=SimpleNamespace(path=path, kernels=None), slots=8, n_ctx=64)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """Lines that tell what was measured; the cache folder can't be written."""
    log = tmp_path / "log"
    (tmp_path / "file").touch()

    def fake(_: Any, counts: tuple[int, ...]) -> tuple[CostTable, bool]:
        with log.open("a") as out:
            out.write(f"{counts}\n")
        return TABLE, True

    monkeypatch.setattr(known, "measure", fake)
    monkeypatch.setattr(kept, "user_cache_path", lambda _: tmp_path / "file" / "folder")
    return lambda: log.read_text().splitlines()


def test_of_children_that_start_together_one_measures_for_all(context, measured):
    note, cores = SharedNote(), CorePool(children=4, threads=8)

    def start(index: int) -> int:
        return in_child(lambda: known.known_costs(context, cores.member(index), note))

    for pid in [start(index) for index in range(4)]:
        os.waitpid(pid, 0)
    assert measured() == ["(1, 2, 8)"]
    assert CostTable.from_json(note.read()) == TABLE
    assert cores.threads_now() == 8


def test_the_first_starts_measure_and_of_each_size_the_quickest_is_kept(context, monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "user_cache_path", lambda _: tmp_path / "cache")
    tables = [((1, 8.0), (4, 20.0)), ((1, 5.0), (4, 30.0)), ((1, 9.0), (2, 9.0), (4, 25.0))]
    left = [CostTable(((1, StepCosts(decode, 1.0)),)) for decode in tables]
    monkeypatch.setattr(known, "measure", lambda *_: (left.pop(0), True))

    def start() -> CostTable:
        note = SharedNote()
        found = known.known_costs(context, CorePool(1, 1).member(0), note)
        assert CostTable.from_json(note.read()) == found
        return found

    assert [start().at(1).decode for _ in range(known.STARTS + 1)] == [
        ((1, 8.0), (4, 20.0)),
        ((1, 5.0), (4, 20.0)),
        ((1, 5.0), (2, 9.0), (4, 20.0)),
        ((1, 5.0), (2, 9.0), (4, 20.0)),
    ]


def test_what_a_busy_machine_gave_is_not_kept(context, monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.setattr(known, "measure", lambda *_: (TABLE, False))
    assert known.known_costs(context, CorePool(1, 4).member(0), SharedNote()) == TABLE
    assert not (tmp_path / "cache").exists()


class TimedContext:
    """A context whose steps take as long as a function of rows and threads says, by a clock of its own.

    A sequence's next token must follow its cells, as llama.cpp demands.
    """

    def __init__(self, ms: Callable[[int, int], float], n_ctx: int = 1024) -> None:
        self.slots, self.n_ctx, self.now_s, self._ms, self._threads = 8, n_ctx, 0.0, ms, 1
        self.n_batch = 100
        self.cells: list[set[int]] = [set() for _ in range(self.slots)]

    def use_threads(self, threads: int) -> None:
        self._threads = threads

    def decode(self, rows: list[Row]) -> None:
        assert len(rows) <= self.n_batch
        self.now_s += self._ms(len(rows), self._threads) / 1e3
        for row in rows:
            cells = self.cells[row.seq]
            assert not cells or row.pos == max(cells) + 1
            assert row.pos < self.n_ctx
            cells.add(row.pos)

    def greedy(self, num_outputs: int) -> None:
        pass

    def trim(self, seq: int, start: int) -> bool:
        self.cells[seq] = {pos for pos in self.cells[seq] if pos < start}
        return True

    def copy(self, source: int, target: int, size: int) -> bool:
        self.cells[target] = {pos for pos in self.cells[source] if pos < size}
        return True


def timed(
    monkeypatch: pytest.MonkeyPatch, ms: Callable[[int, int], float], *counts: int, n_ctx: int = 1024
) -> Any:
    context = TimedContext(ms, n_ctx)
    monkeypatch.setattr("tasks.engine.costs.measure.time.perf_counter", lambda: context.now_s)
    table, is_sound = measure(context, counts)  # type: ignore[arg-type]
    assert not any(context.cells), "it is left empty"
    return table, is_sound, context.now_s


@pytest.mark.parametrize("n_ctx", [1024, 16])
def test_every_size_is_measured_with_every_number_of_threads(monkeypatch, n_ctx: int):
    table, is_sound, took_s = timed(
        monkeypatch, lambda rows, threads: 5.0 * rows / threads, 1, 2, 4, n_ctx=n_ctx
    )
    assert is_sound
    for threads in (1, 2, 4):
        costs = table.at(threads)
        assert dict(costs.decode) == pytest.approx({rows: 5.0 * rows / threads for rows in range(1, 9)})
        assert costs.prefill_ms == pytest.approx(5.0 / threads)
    assert took_s < BUDGET_S + 1.0


def test_of_slow_steps_only_the_first_is_measured(monkeypatch):
    table, is_sound, took_s = timed(monkeypatch, lambda rows, threads: 1e3 / threads, 1, 2)
    assert is_sound
    assert [costs.decode[0] for _, costs in table.by_threads] == [(1, 1e3), (1, 500.0)]
    assert took_s < 6 * BUDGET_S


def test_on_a_busy_machine_one_threads_costs_stand_for_all(monkeypatch):
    table, is_sound, _ = timed(
        monkeypatch, lambda rows, threads: rows * (10.0 if threads == 1 else 1e3), 1, 2
    )
    assert not is_sound
    assert table.at(1) == table.at(2)
    assert table.at(2).decode_ms(8) == pytest.approx(80)
