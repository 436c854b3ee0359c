"""The one place that says with which flags llama.cpp is compiled here, and why."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.engine.build.compiler import CompileError, Compiler
from tasks.engine.build.tiles import SOURCE, Tiles, examine_tiles

#: One library for each kind of processor; the best that fits is loaded, so a wheel is quick everywhere.
_VARIANTS = ("-DGGML_NATIVE=OFF", "-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON")
_PACKAGING = (
    "-DLLAVA_BUILD=OFF",  # images are not served
    "-DLLAMA_BUILD_COMMON=OFF",  # the helpers of llama.cpp's own programs
    # Only libggml.so. A wheel has no links, so libggml.so.0 and libggml.so.0.25.3 would be copies of it, and
    # a process that loads two copies has two lists of backends.
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
    # ggml installs the variants into these folders; llama-cpp-python installs only the other libraries.
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_LIBDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
)
#: The newest flags of a machine's variants; a compiler that knows them knows the other flags too.
_NEWEST = {
    "x86_64": ("-mavxvnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8"),
    "aarch64": ("-march=armv9.2-a+dotprod+fp16+sve+i8mm+sve2+sme",),
}
_AMX_VARIANT = "llama_cpp/lib/libggml-cpu-sapphirerapids.so"
_RESERVED = (
    "CMAKE_C_COMPILER",
    "CMAKE_CXX_COMPILER",
    "CMAKE_TOOLCHAIN_FILE",
    "CMAKE_C_FLAGS",
    "CMAKE_CXX_FLAGS",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a wheel of llama-cpp-python is made; wheels of equal recipes are interchangeable."""

    version: str  # of llama-cpp-python
    compiler: str  # "gcc 12.2.0"
    processor: str  # what the wheel runs on: "x86_64", or the name of the one processor it is built for
    cmake: tuple[str, ...]  # CMake's arguments, the user's last
    c_flags: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    left_out: tuple[str, ...]  # files that are left out of the finished wheel
    why: tuple[str, ...]  # a sentence for each choice

    @property
    def key(self) -> str:
        """The recipe's name: a hash of everything but the sentences."""
        told = asdict(self)
        del told["why"]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def arguments(self) -> list[str]:
        """All of CMake's arguments, including the flags."""
        flags = {"CMAKE_C_FLAGS": self.c_flags, "CMAKE_CXX_FLAGS": self.cxx_flags}
        return [*(f"-D{name}={' '.join(given)}" for name, given in flags.items() if given), *self.cmake]

    def stamp(self) -> dict[str, Any]:
        """What is stored in the wheel: the recipe and its key."""
        return {"key": self.key, **asdict(self)}

    def differences(self, stamp: Mapping[str, Any]) -> list[str]:
        """How a wheel with this stamp differs from this recipe, in words."""
        mine: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        names = {
            "c_flags": "C flags",
            "cxx_flags": "C++ flags",
            "cmake": "CMake arguments",
            "left_out": "without",
        }
        return [
            f"{names.get(name, name)}: {_words(stamp.get(name))} (here: {_words(value)})"
            for name, value in mine.items()
            if name != "why" and stamp.get(name) != value
        ]


def recipe_for(compiler: Compiler, version: str, environ: Mapping[str, str] = os.environ) -> Recipe:
    """The recipe for this compiler and processor; CMAKE_ARGS, CFLAGS and CXXFLAGS are added to it.

    Raises:
        CompileError: CMAKE_ARGS sets a compiler, a toolchain file or a compiler's flags.
    """
    added, c_flags, cxx_flags = (
        tuple(shlex.split(environ.get(name, ""))) for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")
    )
    _refuse_reserved(added)
    tiles = examine_tiles(compiler, cxx_flags)
    cmake, why = _layout(compiler)
    is_portable = "-DGGML_NATIVE=OFF" in cmake
    if is_portable and "-DGGML_NATIVE=ON" in added:  # ggml refuses to build variants with it
        is_portable, cmake = False, tuple(each for each in cmake if each not in _VARIANTS)
    if added:
        why += (f"{shlex.join(added)}: from the variable CMAKE_ARGS.",)
    return Recipe(
        version=version,
        compiler=str(compiler),
        processor=compiler.platform if is_portable else _this_processor(),
        cmake=(*cmake, *added),
        c_flags=(*c_flags, *tiles.flags),
        cxx_flags=(*cxx_flags, *tiles.flags),
        left_out=(_AMX_VARIANT,) if tiles.is_left_out else (),
        why=(*why, *_sentences(tiles)),
    )


def _layout(compiler: Compiler) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """CMake's arguments, and the reasons for them."""
    where = f"{compiler} for {compiler.target or compiler.machine}"
    newest = _NEWEST.get(compiler.machine)
    if not compiler.is_for_linux or newest is None or compiler.kind == "unknown":
        return (), (
            f"llama-cpp-python's defaults, for this processor only: no better flags are known for {where}.",
        )
    source = SOURCE if compiler.machine == "x86_64" else "int main() { return 0; }"
    if not compiler.accepts(source, newest):
        why = f"For this very processor: {where} is too old for {' '.join(newest)}, which variants need."
        return ("-DGGML_NATIVE=ON", *_PACKAGING), (why,)
    return (*_VARIANTS, *_PACKAGING), (
        "A variant for each kind of processor: the best one is chosen at load.",
    )


def _sentences(tiles: Tiles) -> tuple[str, ...]:
    return (tiles.why,) if tiles.why else ()


def _refuse_reserved(added: tuple[str, ...]) -> None:
    for argument in added:
        name = argument.removeprefix("-D").partition("=")[0].partition(":")[0]
        if name in _RESERVED:
            raise CompileError(
                f"CMAKE_ARGS sets {name}, which would override the compiler that was examined. "
                "Name compilers with CC and CXX, and their flags with CFLAGS and CXXFLAGS."
            )


def _this_processor() -> str:
    """A name that is the same for processors with the same features."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    told = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    abilities = hashlib.sha256("\n".join(sorted(set(told))).encode()).hexdigest()[:8]
    names = [line.partition(":")[2].strip() for line in told if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {abilities}"


def _words(value: Any) -> str:
    return (" ".join(value) if isinstance(value, list) else str(value or "")) or "none"
