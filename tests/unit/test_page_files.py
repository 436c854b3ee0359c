"""The page's files: complete, other people's files unchanged, and all served under one digest."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from service.routes.page_files import FOLDER, Assets

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
MODULES = sorted((FOLDER / "assets").rglob("*.js"))


def test_libraries_are_as_they_were_brought() -> None:
    done = subprocess.run(
        [sys.executable, ".ci/vendor.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_what_a_module_imports_is_there(path: Path) -> None:
    for name in re.findall(r"""^(?:import|export)\b[^;]*?\bfrom ?["']([^"']+)["']""", path.read_text(), re.M):
        assert name.startswith("./"), name
        assert (path.parent / name).is_file(), name


def test_the_page_names_files_that_are_there() -> None:
    assets = Assets.read()
    names = re.findall(rf'"assets/{assets.digest}/([^"]+)"', assets.index.content.decode())
    assert "main.js" in names
    assert set(names) <= set(assets.files)


def test_the_digest_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("assets/a.js")
    (tmp_path / "assets" / "a.js").write_text("1")
    first = Assets.read(tmp_path)
    (tmp_path / "assets" / "a.js").write_text("2")
    second = Assets.read(tmp_path)
    assert first.digest != second.digest
    assert second.index.content.decode() == f"assets/{second.digest}/a.js"


def test_the_package_has_all_files() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "service"
    ]
    packed = {path for pattern in data for path in (ROOT / "service").glob(pattern) if path.is_file()}
    assert packed == {path for path in FOLDER.rglob("*") if path.is_file() and path.name != "README.md"}
