"""Has pip compile a wheel of llama-cpp-python, and shows the progress."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import deque
from pathlib import Path

from tasks.engine.build.compiler import CompileError
from tasks.engine.build.recipe import Recipe

_COUNTER = re.compile(r"\s*\[(\d+)/(\d+)\] ")
#: llama-cpp-python forces LLAMA_BUILD_COMMON to ON in CMake's cache. This file sets a plain variable after
#: the project has begun, and a plain variable takes precedence over the cache.
_INCLUDED = "set(LLAMA_BUILD_COMMON OFF)\n"
#: After this line pip's output is only about pip itself.
_PIP_GIVES_UP = "error: subprocess-exited-with-error"
_ADVICE = (
    "If a compiler was killed, the memory did not suffice: set CMAKE_BUILD_PARALLEL_LEVEL=1. "
    "CC and CXX name another compiler.\n"
    "Or take a prebuilt wheel: make setup WHEELS=/path/to/wheel. The whole log: {}"
)


def build(recipe: Recipe, lines: list[str], python: str, folder: Path, log: Path) -> Path:
    """Compile the wheel in ``folder``; ``lines`` are pip's requirement.

    Raises:
        CompileError: pip made no wheel.
    """
    requirements, included = folder / "requirements.txt", folder / "included.cmake"
    requirements.write_text("\n".join(lines) + "\n")
    included.write_text(_INCLUDED)
    command = [
        *(python, "-m", "pip", "wheel", "--verbose", "--disable-pip-version-check"),
        *("--no-deps", "--no-cache-dir", "--no-binary=llama-cpp-python"),
        *(["--require-hashes"] if "--hash=" in "".join(lines) else []),
        "--config-settings=ninja.make-fallback=false",  # make would compile one file at a time
        *("--wheel-dir", str(folder), "--requirement", str(requirements)),
    ]
    last = _watch(command, _environment(recipe, included), log)
    built = next(folder.glob("*.whl"), None)
    if built is None:
        raise CompileError(
            "\n".join(["llama.cpp could not be compiled. The last lines:", *last, _ADVICE.format(log)])
        )
    return built


def _environment(recipe: Recipe, included: Path) -> dict[str, str]:
    arguments = recipe.arguments
    if "-DLLAMA_BUILD_COMMON=OFF" in arguments:
        arguments.append(f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={included}")
    ours = {"CMAKE_ARGS": shlex.join(arguments)}
    # Without these, scikit-build-core takes the compiler that Python was built with, not the one examined.
    defaults = {"CC": "cc", "CXX": "c++"}
    return {**os.environ, **ours, **{name: os.environ.get(name) or value for name, value in defaults.items()}}


def _watch(command: list[str], environ: dict[str, str], log: Path) -> list[str]:
    """Run a command and show its progress; returns its last lines, without the calls of the compiler."""
    last: deque[str] = deque(maxlen=25)
    progress, is_over = Progress(), False
    with (
        log.open("w") as copy,
        subprocess.Popen(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as run,
    ):
        for line in run.stdout or ():
            copy.write(line)
            if counted := _COUNTER.match(line):
                progress.show(int(counted[1]), int(counted[2]))
            elif line.strip() and not is_over:
                is_over = line.strip() == _PIP_GIVES_UP
                last.append(line.rstrip()[:300])
    progress.end()
    return list(last)


class Progress:
    """Shows progress: one changing line on a terminal, elsewhere a new line for every tenth."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._tenth = -1

    def show(self, num_done: int, num_all: int) -> None:
        """Show that ``num_done`` of ``num_all`` files are compiled."""
        told = f"Compiling llama.cpp: {num_done} of {num_all} files"
        if self._is_terminal:
            sys.stderr.write(f"\r{told}")
        elif (tenth := 10 * num_done // num_all) > self._tenth:
            self._tenth = tenth
            sys.stderr.write(f"{told}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """End the line on a terminal."""
        if self._is_terminal:
            sys.stderr.write("\n")
