"""Finds the C and C++ compilers for llama.cpp, and what they can do."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_NO_COMPILER = """\
llama.cpp is compiled here, and that needs a C++ compiler: {name} is not there.
Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install),
name another with the variables CC and CXX, or take a prebuilt wheel: make setup WHEELS=/path/to/wheel."""
_TWO_KINDS = "CC is {} and CXX is {}. Name two compilers of one kind with the variables CC and CXX."


class CompileError(Exception):
    """There is no usable llama.cpp; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C and a C++ compiler of one kind."""

    cc: tuple[str, ...]  # the command, with the arguments in CC
    cxx: tuple[str, ...]
    kind: str  # "gcc", "clang" or "unknown"
    version: str
    target: str  # "x86_64-linux-gnu"; empty if the compiler does not say

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Compiler:
        """The compilers that CC and CXX name, else ``cc`` and ``c++``.

        Raises:
            CompileError: a compiler is missing, or the two are not of one kind.
        """
        cc = tuple(shlex.split(environ.get("CC") or "cc"))
        cxx = tuple(shlex.split(environ.get("CXX") or "c++"))
        (c_kind, _), (kind, version) = _identify(cc, "c"), _identify(cxx, "c++")
        if c_kind != kind:
            raise CompileError(
                _TWO_KINDS.format(f"{shlex.join(cc)} ({c_kind})", f"{shlex.join(cxx)} ({kind})")
            )
        return cls(cc, cxx, kind, version, _output([*cxx, "-dumpmachine"]).strip())

    def __str__(self) -> str:
        """The name for people: "gcc 12.2.0"."""
        return f"{self.kind} {self.version}".strip()

    @property
    def is_for_linux(self) -> bool:
        """Whether the programs that it compiles run on Linux."""
        return "linux" in self.target

    @property
    def platform(self) -> str:
        """What its wheels run on: the machine, and the C library if that isn't glibc."""
        *_, library = self.target.split("-")
        return self.machine if library in {"gnu", "linux", ""} else f"{self.machine}-{library}"

    @property
    def machine(self) -> str:
        """What it compiles for: "x86_64", "aarch64" or another name."""
        return self.target.partition("-")[0] or platform.machine()

    def accepts(self, source: str, flags: Iterable[str]) -> bool:
        """Whether it compiles and assembles this C++ text with these flags."""
        with TemporaryDirectory() as folder:
            text = Path(folder, "probe.cpp")
            text.write_text(source)
            command = [*self.cxx, *flags, "-c", str(text), "-o", str(text.with_suffix(".o"))]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _identify(command: tuple[str, ...], language: str) -> tuple[str, str]:
    """The kind of a compiler and its version, from its predefined macros."""
    told = _output([*command, "-dM", "-E", "-x", language, os.devnull])
    found = re.search(r'^#define __VERSION__ "(.*)"$', told, re.MULTILINE)
    version = found[1].strip() if found else ""
    if re.search(r"^#define __clang__ ", told, re.MULTILINE):
        return "clang", version
    return ("gcc" if re.search(r"^#define __GNUC__ ", told, re.MULTILINE) else "unknown"), version


def _output(command: list[str]) -> str:
    """What a command prints; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise CompileError(_NO_COMPILER.format(name=command[0])) from error
    return done.stdout if done.returncode == 0 else ""
