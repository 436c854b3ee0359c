"""What the tests of compiling llama.cpp need: compilers that are scripts, and small wheels."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest

from tasks.engine.build.compiler import Compiler
from tasks.engine.build.tiles import SOURCE

ROOT = Path(__file__).parents[2]
NAME = "llama_cpp_python-0.3.36-py3-none-any.whl"
_INFO = "llama_cpp_python-0.3.36.dist-info"
WHEEL_FILES = {
    "llama_cpp/__init__.py": "",
    "llama_cpp/lib/libllama.so": "library",
    "llama_cpp/lib/libggml-cpu-haswell.so": "for AVX2",
    "llama_cpp/lib/libggml-cpu-sapphirerapids.so": "for AMX",
    "llama_cpp/lib/cmake/llama/llama-config.cmake": "needless",
    "llama_cpp/lib/libcommon.a": "needless",
    "include/llama.h": "needless",
    "lib/libllama.so": "needless",
    f"{_INFO}/METADATA": "Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: 0.3.36\n",
    f"{_INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
}


def script(path: Path, text: str) -> Path:
    """A program of /bin/sh."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def compiler_script(folder: Path, predefined: str, target: str, *, compiles: bool = True) -> dict[str, str]:
    """CC and CXX for a script that describes itself as given, and compiles everything or nothing."""
    text = f"""
case "$*" in
*-dM*) printf '%s\\n' '{predefined}' ;;
*-dumpmachine*) echo {target} ;;
*) exit {0 if compiles else 1} ;;
esac"""
    path = str(script(folder / "compiler", text))
    return {"CC": path, "CXX": path}


def real_compiler(environ: Mapping[str, str]) -> Compiler:
    """The installed compiler; skips the test if it doesn't know AMX."""
    if not shutil.which("c++"):
        pytest.skip("needs a C++ compiler")
    compiler = Compiler.find(environ)
    if compiler.machine != "x86_64" or not compiler.accepts(SOURCE, ("-mamx-tile", "-mamx-int8")):
        pytest.skip("AMX is a matter of compilers for x86-64 that know it")
    return compiler


def make_wheel(folder: Path) -> Path:
    """A small wheel, of the form that pip would compile."""
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / NAME, "w") as new:
        for name, text in WHEEL_FILES.items():
            entry = ZipInfo(name)
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            new.writestr(entry, text)
        new.writestr(f"{_INFO}/RECORD", "".join(f"{name},,\n" for name in (*WHEEL_FILES, f"{_INFO}/RECORD")))
    return folder / NAME


def python_script(folder: Path, wheel: Path) -> Path:
    """A Python whose ``pip wheel`` hands out this wheel as if it had compiled it; without one it fails.

    Its pip installs into ``folder/site``; ``folder/compiled`` has a line of CMAKE_ARGS for each wheel.
    """
    text = f"""
case "$*" in
"-m pip wheel "*)
    echo "$CMAKE_ARGS" >>'{folder}/compiled'
    echo '  [1/2] compiles one'
    echo '  [2/2] compiles another'
    echo 'error: a word of the compiler'
    while [ "$1" != --wheel-dir ]; do shift; done
    exec cp '{wheel}' "$2" ;;
"-m pip install "*)
    shift 3
    exec '{sys.executable}' -m pip install --target '{folder}/site' --upgrade "$@" ;;
*)
    PYTHONPATH='{folder}/site' exec '{sys.executable}' "$@" ;;
esac"""
    return script(folder / "python", text)
