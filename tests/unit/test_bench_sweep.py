"""A sweep's plan and its report; nothing is measured."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bench import plots, report
from service.bench.cases import Encoded, Sweep, names, parse_counts, parse_shapes, shapes_for, slots_each
from service.bench.encodings import encoded, encoding_of
from service.bench.report import Row
from service.cli import sweep

pytestmark = pytest.mark.unit

ROWS = [
    Row("Q8_0", workers, 2 // workers, 16 // workers, at_once, 100.0 * at_once, 50, 90, 12.5, 700, 0)
    for workers in (1, 2)
    for at_once in (1, 16)
]


@given(st.integers(1, 256))
def test_shapes_keep_every_core_busy(cores: int):
    shapes = shapes_for(cores)
    assert len(set(shapes)) == len(shapes)
    assert {workers * threads for workers, threads in shapes} == {cores}
    assert {(1, cores), (cores, 1)} <= set(shapes)


@given(st.integers(1, 1000), st.integers(1, 64))
def test_slots_are_enough_and_no_child_has_one_too_many(total: int, workers: int):
    each = slots_each(total, workers)
    assert each * workers >= total > (each - 1) * workers


def test_a_sweep_is_every_encoding_with_every_shape_at_every_load():
    models = (Encoded("Q8_0", Path("a")), Encoded("F16", Path("b")))
    plan = Sweep(models, ((1, 2), (2, 1)), (1, 16), n_predict=128)
    assert [(c.model.encoding, c.shape, c.slots) for c in plan.cases()] == [
        ("Q8_0", "1x2", 16),
        ("Q8_0", "2x1", 8),
        ("F16", "1x2", 16),
        ("F16", "2x1", 8),
    ]
    assert [(load.num_requests, load.concurrency) for load in plan.loads()] == [(4, 1), (32, 16)]


def test_what_people_write():
    assert parse_shapes("1x2, 2X1") == ((1, 2), (2, 1))
    assert parse_counts("1, 16") == (1, 16)
    assert names("q8_0,F16,Q8_0,") == ("Q8_0", "F16")


@pytest.mark.parametrize("text", ["2", "0x1", "x2", "1x", "1x2x3", "-1x2", ""])
def test_what_is_no_shape(text: str):
    with pytest.raises(ValueError, match="not of the form WORKERSxTHREADS"):
        parse_shapes(text)


@pytest.mark.parametrize("text", ["0", "four", "1,,2", ""])
def test_what_is_no_count(text: str):
    with pytest.raises(ValueError, match="not a whole number of 1 or more"):
        parse_counts(text)


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("Tiny.Q8_0.gguf", "Q8_0"),
        ("tiny-q4_k_m.gguf", "Q4_K_M"),
        ("x.BF16.gguf", "BF16"),
        ("x.gguf", "as it is"),
    ],
)
def test_the_encoding_in_a_name(name: str, encoding: str):
    assert encoding_of(Path(name)) == encoding


class Silent:
    def stage(self, text: str) -> None:
        raise AssertionError(f"nothing is to be done, but: {text}")

    def advance(self, done: int, total: int) -> None:
        """Say nothing."""


def test_a_file_that_is_there_is_taken(tmp_path: Path):
    source, other = tmp_path / "tiny.Q8_0.gguf", tmp_path / "tiny.Q4_0.gguf"
    source.write_bytes(b"eight")
    other.write_bytes(b"four")
    assert encoded(source, "Q8_0", Silent()).path == source
    assert encoded(source, "Q4_0", Silent()).path == other


def test_the_report_in_three_forms():
    text = report.markdown(ROWS, "the command")
    assert text.startswith("`the command`")
    assert "| Q8_0 | 2 x 1 | 16 | 1600.0 | 50 | 90 | 12.5 | 700 |" in text
    lines = list(csv.DictReader(io.StringIO(report.as_csv(ROWS))))
    assert [line["tokens_per_second"] for line in lines] == ["100.0", "1600.0"] * 2
    told = json.loads(report.as_json(ROWS, "the command"))
    assert [row["concurrency"] for row in told["rows"]] == [1, 16, 1, 16]
    assert told["machine"]


def test_the_plots_have_a_line_for_each_service(tmp_path: Path):
    paths = plots.plot(ROWS, tmp_path)
    assert [path.name for path in paths] == ["throughput.svg", "latency.svg"]
    for path in paths:
        text = path.read_text()
        assert "<!-- Q8_0 1x2 -->" in text
        assert "<!-- Q8_0 2x1 -->" in text


def test_without_matplotlib_it_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(plots, "can_plot", lambda: False)
    sweep._require_folder(tmp_path / "out")
    assert "pip install 'concurrent-inference-server[plots]'" in capsys.readouterr().err
    sweep._write(ROWS, "the command", tmp_path / "out")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"sweep.md", "sweep.csv", "sweep.json"}
