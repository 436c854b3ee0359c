"""Compiling, keeping, stamping and installing llama-cpp-python; a script stands for the compilation."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.engine.build import wheel
from tests.unit.compiling import NAME, ROOT, WHEEL_FILES, compiler_script, make_wheel, python_script

pytestmark = pytest.mark.unit

RECIPE: dict[str, Any] = {"key": "k", "left_out": ["llama_cpp/lib/libggml-cpu-sapphirerapids.so"]}
GCC = '#define __GNUC__ 14\n#define __VERSION__ "14.2.0"'


class Machine:
    """A machine for the test: an interpreter, a compiler that the recipe is for, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"
        self.source = folder / "source" / NAME
        self.python = python_script(folder, self.source)
        self.environ = os.environ | compiler_script(folder, GCC, "aarch64-linux-gnu")
        self.environ |= {"XDG_CACHE_HOME": str(self.cache), "CMAKE_ARGS": "", "CFLAGS": "", "CXXFLAGS": ""}

    def compile(self, *arguments: str, expect: int = 0) -> str:
        """Run the program by its path, and return its output."""
        command = [sys.executable, str(ROOT / "tasks/engine/build/compile.py"), "--python", str(self.python)]
        done = subprocess.run(
            [*command, *arguments], env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    @property
    def compiled(self) -> list[str]:
        """CMAKE_ARGS of each wheel that pip was to compile."""
        told = self.folder / "compiled"
        return told.read_text().splitlines() if told.exists() else []

    @property
    def kept(self) -> list[Path]:
        """The wheels in its cache."""
        return sorted(self.cache.glob("inference-server/wheels/*/*.whl"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    make_wheel(made.source.parent)
    return made


def test_a_stamped_wheel_installs_and_its_record_is_right(tmp_path: Path):
    stamped = wheel.stamp(make_wheel(tmp_path / "built"), RECIPE, tmp_path)
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", site, stamped],
        check=True,
    )
    rows = list(csv.reader((site / "llama_cpp_python-0.3.36.dist-info" / "RECORD").open()))
    recorded = {name: digest for name, digest, _ in rows if digest}
    for name, digest in recorded.items():
        right = base64.urlsafe_b64encode(hashlib.sha256((site / name).read_bytes()).digest())
        assert digest == f"sha256={right.decode().rstrip('=')}", name
    left = {name for name, text in WHEEL_FILES.items() if text != "needless"} - set(RECIPE["left_out"])
    assert left | {wheel.STAMP} <= set(recorded)
    assert not (set(WHEEL_FILES) - left) & set(recorded)
    assert os.access(site / "llama_cpp/lib/libllama.so", os.X_OK)


def test_the_stamp_is_the_recipe_and_the_variants_found(tmp_path: Path):
    built = make_wheel(tmp_path / "built")
    assert wheel.read_stamp(built) is None
    assert wheel.read_stamp(wheel.stamp(built, RECIPE, tmp_path)) == {**RECIPE, "variants": ["haswell"]}


def test_it_is_compiled_once_for_a_recipe(machine: Machine):
    assert "Compiling llama.cpp: 2 of 2 files" in machine.compile()
    (arguments,) = machine.compiled
    assert "-DGGML_CPU_ALL_VARIANTS=ON" in arguments
    version, stamp = wheel.installed(str(machine.python))
    assert (version, stamp) == ("0.3.36", wheel.read_stamp(machine.kept[0]))
    assert "is there" in machine.compile()
    machine.compile("--reinstall")
    assert len(machine.compiled) == 1


def test_another_recipe_is_compiled_for_itself(machine: Machine):
    machine.compile()
    machine.environ["CMAKE_ARGS"] = "-DGGML_VULKAN=ON"
    machine.compile()
    assert machine.compiled[1].endswith("-DGGML_VULKAN=ON") or "-DGGML_VULKAN=ON " in machine.compiled[1]
    assert len(machine.kept) == 2
    stamp = wheel.installed(str(machine.python))[1]
    assert stamp is not None
    assert stamp["cmake"][-1] == "-DGGML_VULKAN=ON"


def test_a_kept_wheel_of_another_recipe_is_not_taken(machine: Machine):
    machine.compile()
    (kept,) = machine.kept
    wheel.stamp(machine.source, RECIPE, kept.parent)
    machine.compile("--reinstall")
    assert len(machine.compiled) == 2
    assert (wheel.read_stamp(kept) or {})["key"] == kept.parent.name


def test_a_failure_shows_the_compilers_words_and_what_to_do(machine: Machine):
    machine.source.unlink()
    told = machine.compile(expect=1)
    assert "error: a word of the compiler" in told
    log = Path(re.findall(r"The whole log: (\S+)", told)[0])
    assert "[1/2] compiles one" in log.read_text()
    assert machine.kept == []
    assert not (machine.folder / "site").exists()


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_prebuilt_wheel_without_a_stamp_is_taken_and_said(where: str, machine: Machine):
    told = machine.compile("--wheels", str(machine.source if where == "file" else machine.source.parent))
    assert "no stamp" in told
    assert "inference-server doctor --repair" in told
    assert wheel.installed(str(machine.python)) == ("0.3.36", None)
    assert machine.compiled == []
    machine.compile()
    assert len(machine.compiled) == 1


def test_a_prebuilt_wheel_of_another_recipe_is_told_apart(machine: Machine):
    recipe = json.loads(machine.compile("--show"))
    (machine.folder / "theirs").mkdir()
    theirs = wheel.stamp(machine.source, {**recipe, "compiler": "gcc 12.2.0"}, machine.folder / "theirs")
    told = machine.compile("--wheels", str(theirs))
    assert "compiler: gcc 12.2.0 (here: gcc 14.2.0)." in told
    (machine.folder / "mine").mkdir()
    mine = wheel.stamp(machine.source, recipe, machine.folder / "mine")
    assert "otherwise" not in machine.compile("--wheels", str(mine))


def test_a_prebuilt_wheel_of_another_version_is_refused(machine: Machine):
    lock = machine.folder / "lock"
    lock.write_text("llama-cpp-python==0.3.35 \\\n    --hash=sha256:00\n")
    told = machine.compile("--lock", str(lock), "--wheels", str(machine.source), expect=1)
    assert "0.3.36, but 0.3.35 is locked" in told


def test_the_files_that_the_build_is_made_from_suffice(machine: Machine):
    """Makefile and Containerfile name the same files, and these work without the others."""
    assert "RECIPE := $(wildcard tasks/engine/build/*.py)\n" in (ROOT / "Makefile").read_text()
    container = (ROOT / "deploy/Containerfile").read_text()
    copied = re.findall(r"^COPY (tasks/\S+) \S+$", container, re.MULTILINE)
    assert copied == ["tasks/__init__.py", "tasks/engine/__init__.py", "tasks/engine/build"]
    names = [*copied[:2], *(str(path.relative_to(ROOT)) for path in (ROOT / copied[2]).glob("*.py"))]
    for name in names:
        (machine.folder / "alone" / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.folder / "alone" / name).write_text((ROOT / name).read_text())
    program = machine.folder / "alone/tasks/engine/build/compile.py"
    command = [sys.executable, "-I", str(program), "--show", "--lock", str(ROOT / "deploy/requirements.lock")]
    done = subprocess.run(command, env=machine.environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(machine.compile("--show"))
