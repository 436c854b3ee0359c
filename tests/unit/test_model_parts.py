"""The files of a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.contract.model_parts import model_bytes, model_parts
from tasks.worker.ending.model_file import ModelFile

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["m.gguf", "m-1-of-3.gguf", "m-00001-of-00003.bin", "-00001-of-00003.gguf"])
def test_a_model_in_one_file(name: str) -> None:
    assert model_parts(Path("/d") / name) == [Path("/d") / name]


@given(st.text(min_size=1).filter(lambda name: not {"/", "\0"} & set(name)), st.integers(1, 50))
def test_a_model_in_several_files(name: str, number: int) -> None:
    parts = model_parts(Path("/d") / f"{name}-00001-of-{number:05}.gguf")
    assert len(parts) == number
    assert [part.name for part in parts] == [
        f"{name}-{n:05}-of-{number:05}.gguf" for n in range(1, number + 1)
    ]
    assert model_parts(parts[-1]) == parts


def test_a_change_in_any_part_is_a_change(tmp_path: Path) -> None:
    first, second = model_parts(tmp_path / "m-00001-of-00002.gguf")
    first.write_bytes(b"abc")
    second.write_bytes(b"defgh")
    assert model_bytes(first) == 8
    model = ModelFile.at(first)
    assert model.change() == ""
    os.utime(second, ns=(1, 1))
    assert "has changed" in model.change()
    second.unlink()
    assert "is gone" in model.change()
