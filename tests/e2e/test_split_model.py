"""A model in several files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tasks.contract.model_parts import model_parts
from tasks.engine import kept
from tests.e2e.serving import run_command
from tests.split_gguf import split

pytestmark = pytest.mark.e2e


@pytest.fixture
def first(model_path: Path, tmp_path: Path) -> Path:
    """The first part of the default model in three."""
    return split(model_path, tmp_path, 3)


def findings(path: Path) -> dict[str, dict[str, str]]:
    answer = run_command("doctor", "--json", "--model", str(path), "--n-ctx", "256", "--slots", "2")
    return {each["about"]: each for each in json.loads(answer.stdout)["findings"]}


def test_all_parts_count(first: Path, model_path: Path) -> None:
    parts = model_parts(first)
    assert len(parts) == 3
    assert all(part.is_file() for part in parts)
    size = sum(part.stat().st_size for part in parts)
    assert kept.model_size(first) == size > model_path.stat().st_size
    found = findings(first)
    assert f"{size / 1e6:.0f} MB" in found["model"]["told"]
    assert f"{size >> 20} MiB of weights" in found["memory"]["told"]
    assert found["kernels"]["level"] == "ok"  # so it was loaded, and computed


def test_a_part_that_is_missing_is_named(first: Path) -> None:
    model_parts(first)[1].unlink()
    found = findings(first)["model"]
    assert found["level"] == "problem"
    assert model_parts(first)[1].name in found["told"]


def test_a_part_that_changed_makes_another_model(first: Path, tmp_path: Path) -> None:
    before = kept.model_identity(first)
    last = model_parts(first)[-1]
    shutil.copy(last, tmp_path / "copy")
    (tmp_path / "copy").replace(last)
    assert kept.model_identity(first) != before
