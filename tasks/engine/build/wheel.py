"""Removes needless files from a wheel of llama-cpp-python, and writes and reads its stamp."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from tasks.engine.build.compiler import CompileError

STAMP = "llama_cpp/lib/build.json"
#: Files that CMake installs for compiling against the libraries, which is not done here. "lib" and "bin"
#: would even be installed beside other packages.
_NEEDLESS = re.compile(
    r"(lib|lib64|bin|include|share)/|llama_cpp/include/|llama_cpp/lib/(cmake|pkgconfig)/|.*\.a$"
)
_VARIANT = re.compile(r"llama_cpp/lib/libggml-cpu-(\w.*)\.so$")
#: Prints the installed wheel's version and stamp (null without a stamp); nothing if none is installed.
_ASK = f"""
import importlib.metadata, json
try:
    found = importlib.metadata.distribution("llama-cpp-python")
except importlib.metadata.PackageNotFoundError:
    raise SystemExit
text = found.read_text("../{STAMP}")
print(json.dumps({{"version": found.version, "stamp": json.loads(text) if text else None}}))
"""


def cache_folder() -> Path:
    """Where finished wheels are kept, each in a folder named after its recipe's key."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~").expanduser() / ".cache"
    return Path(home, "inference-server", "wheels")


def stamp(built: Path, recipe: Mapping[str, Any], into: Path) -> Path:
    """Copy the wheel into the folder ``into``, without needless files and with the recipe as its stamp."""
    finished = into / built.name
    with ZipFile(built) as old, ZipFile(finished, "w", ZIP_DEFLATED) as new:
        kept = [entry for entry in old.infolist() if not _is_needless(entry, recipe["left_out"])]
        record = next(entry.filename for entry in kept if entry.filename.endswith(".dist-info/RECORD"))
        rows = [_copy(old, entry, new) for entry in kept if entry.filename != record]
        variants = sorted(found[1] for entry in kept if (found := _VARIANT.match(entry.filename)))
        told = json.dumps({**recipe, "variants": variants}, indent=2).encode()
        new.writestr(STAMP, told)
        new.writestr(record, _record([*rows, (STAMP, *_digest(told)), (record, "", "")]))
    return finished


def read_stamp(wheel: Path) -> dict[str, Any] | None:
    """The recipe that a wheel was made by; None if it has no stamp or is not a wheel."""
    try:
        with ZipFile(wheel) as opened:
            return dict(json.loads(opened.read(STAMP)))
    except (KeyError, ValueError, BadZipFile, OSError):
        return None


def installed(python: str) -> tuple[str, dict[str, Any] | None]:
    """Version and stamp of this interpreter's llama-cpp-python; without one, an empty version.

    Raises:
        CompileError: the interpreter is missing or doesn't work.
    """
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(
            f"{python} is not a Python that works: {error}. Name another with --python."
        ) from error
    told = json.loads(done.stdout or '{"version": "", "stamp": null}')
    return told["version"], told["stamp"]


def _is_needless(entry: ZipInfo, left_out: list[str]) -> bool:
    return entry.is_dir() or entry.filename in left_out or _NEEDLESS.match(entry.filename) is not None


def _copy(old: ZipFile, entry: ZipInfo, new: ZipFile) -> tuple[str, str, str]:
    """Copy an entry, with its mode; returns its row of the RECORD."""
    content = old.read(entry)
    new.writestr(entry, content, ZIP_DEFLATED)
    return (entry.filename, *_digest(content))


def _digest(content: bytes) -> tuple[str, str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def _record(rows: list[tuple[str, str, str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
