"""Which libraries to use and how: parsed from the command line and passed to a separate process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds that one measurement may take.
TIMEOUT_S = 600.0
_SWITCH = {"on": True, "off": False}


class BuildError(Exception):
    """A build that can't be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How a build is used; ``None`` leaves a choice to llama.cpp.

    ``variant`` names a set of kernels (``libggml-cpu-VARIANT.so``), ``flash_attention`` is on, off or auto,
    ``cache_type`` the encoding of the KV cache, ``repack`` whether weights are rearranged for the kernels.
    """

    variant: str | None = None
    flash_attention: str | None = None
    cache_type: str | None = None
    repack: bool | None = None

    @classmethod
    def parse(cls, text: str) -> Variation:
        """Read a text such as ``fa=off,kv=q8_0,repack=off,variant=icelake``; a word alone is a variant.

        Raises :class:`BuildError`.
        """
        pairs = dict(_pair(part) for part in text.split(",") if part)
        if unknown := set(pairs) - {"variant", "fa", "kv", "repack"}:
            raise BuildError(f"{unknown.pop()!r} is none of variant, fa, kv and repack, in {text!r}")
        if pairs.get("fa", "auto") not in {"on", "off", "auto"}:
            raise BuildError(f"fa is on, off or auto, not {pairs['fa']!r}")
        if pairs.get("repack", "on") not in _SWITCH:
            raise BuildError(f"repack is on or off, not {pairs['repack']!r}")
        repack = _SWITCH[pairs["repack"]] if "repack" in pairs else None
        return cls(pairs.get("variant"), pairs.get("fa"), pairs.get("kv"), repack)


def _pair(part: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    return (name, value) if equals else ("variant", name)


@dataclass(frozen=True, slots=True)
class Build:
    """A named folder with ``libllama.so`` and ``libggml*.so``, and how it is used."""

    label: str
    folder: Path
    variation: Variation = dataclasses.field(default_factory=Variation)

    def ask(self, module: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON that ``python -m module`` prints with these libraries.

        Raises :class:`BuildError` when it fails or takes longer than :data:`TIMEOUT_S`.
        """
        told = json.dumps({**question, "folder": str(self.folder), **dataclasses.asdict(self.variation)})
        command = [sys.executable, "-m", module, told]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                env=self._environment(),
                timeout=TIMEOUT_S,
            )
        except subprocess.CalledProcessError as error:
            raise BuildError(f"{self.label}: {_last_line(error)}") from error
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{self.label}: no answer within {TIMEOUT_S:.0f} s") from error
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def _environment(self) -> dict[str, str]:
        """Loading uses one OpenMP thread; computing sets its own number of threads."""
        return {**os.environ, "LLAMA_CPP_LIB_PATH": str(self.folder), "OMP_NUM_THREADS": "1"}


def _last_line(error: subprocess.CalledProcessError) -> str:
    lines = error.stderr.strip().splitlines()
    return lines[-1] if lines else f"the process ended with {error.returncode}"


def parse_builds(texts: Iterable[str]) -> tuple[Build, ...]:
    """Read texts ``LABEL=FOLDER[:VARIATION]``, or ``LABEL:VARIATION`` for a label that came before.

    Raises :class:`BuildError` when a text has another form, a folder has no ``libllama.so``, or a label
    occurs twice.
    """
    builds: dict[str, Build] = {}
    for text in texts:
        build = _parse(text, builds)
        if build.label in builds:
            raise BuildError(f"two builds are named {build.label!r}; give each its own label")
        builds[build.label] = build
    return tuple(builds.values())


def _parse(text: str, known: Mapping[str, Build]) -> Build:
    label, equals, rest = text.partition("=")
    if equals and ":" not in label:
        folder, _, variation = rest.partition(":")
        return Build(label, _library_folder(Path(folder)), Variation.parse(variation))
    base, _, variation = text.partition(":")
    if base not in known:
        raise BuildError(f"{text!r} names no folder; write LABEL=FOLDER first, then LABEL:fa=off")
    return Build(text, known[base].folder, Variation.parse(variation))


def _library_folder(folder: Path) -> Path:
    if not (folder / "libllama.so").is_file():
        raise BuildError(f"{folder}: no libllama.so here; name the folder that holds a build's libraries")
    return folder.resolve()
