"""With which flags llama.cpp is compiled here, and why: the one place that says so."""

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

#: One library for each kind of processor, of which the best that fits is loaded: a wheel is quick everywhere.
_VARIANTS = ("-DGGML_NATIVE=OFF", "-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON")
_PACKAGING = (
    "-DLLAVA_BUILD=OFF",  # images are not served
    "-DLLAMA_BUILD_COMMON=OFF",  # the helpers of llama.cpp's own programs
    # libggml.so alone. A wheel has no links: libggml.so.0 and libggml.so.0.25.3 would be copies of it, and a
    # process that loads two of them has two lists of backends.
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
    # ggml installs the variants by these, llama-cpp-python only the rest.
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_LIBDIR=llama_cpp/lib",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
)
#: The newest flags that the variants of a machine are compiled with; what knows them knows the others.
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
    """How a wheel of llama-cpp-python is made. Two wheels of equal recipes are interchangeable."""

    version: str  # of llama-cpp-python
    compiler: str  # "gcc 12.2.0"
    processor: str  # what it runs on: "x86_64", or one processor's name when it is built for that one
    cmake: tuple[str, ...]  # CMake's arguments, the user's last
    c_flags: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    left_out: tuple[str, ...]  # files that the finished wheel goes without
    why: tuple[str, ...]  # a sentence for each choice

    @property
    def key(self) -> str:
        """Names it: a hash of everything but the sentences."""
        told = asdict(self)
        del told["why"]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def arguments(self) -> list[str]:
        """All of CMake's arguments, the flags too."""
        flags = {"CMAKE_C_FLAGS": self.c_flags, "CMAKE_CXX_FLAGS": self.cxx_flags}
        return [*(f"-D{name}={' '.join(given)}" for name, given in flags.items() if given), *self.cmake]

    def stamp(self) -> dict[str, Any]:
        """What the wheel says of itself."""
        return {"key": self.key, **asdict(self)}

    def differences(self, stamp: Mapping[str, Any]) -> list[str]:
        """In words, what a wheel with this stamp has otherwise."""
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

    Raises :class:`CompileError` when CMAKE_ARGS would undo it.
    """
    added, c_flags, cxx_flags = (
        tuple(shlex.split(environ.get(name, ""))) for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")
    )
    _refuse_reserved(added)
    tiles = examine_tiles(compiler, cxx_flags)
    cmake, why = _layout(compiler)
    is_portable = "-DGGML_NATIVE=OFF" in cmake
    if is_portable and "-DGGML_NATIVE=ON" in added:  # which ggml refuses to build with variants
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
    """CMake's arguments, and why."""
    where = f"{compiler} for {compiler.target or compiler.machine}"
    newest = _NEWEST.get(compiler.machine)
    if not compiler.is_for_linux or newest is None or compiler.kind == "unknown":
        return (), (
            f"llama-cpp-python's defaults, for this very processor: nothing better is known for {where}.",
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
                f"CMAKE_ARGS sets {name}, which would undo what is known of the compiler. "
                "Name compilers with CC and CXX, and their flags with CFLAGS and CXXFLAGS."
            )


def _this_processor() -> str:
    """A name that processors of equal abilities share."""
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
