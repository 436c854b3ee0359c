"""What is known about a server's llama.cpp: its compiler, its flags and its kernels."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

UNKNOWN_FLAGS = "unknown flags"
UNKNOWN_KERNELS = "unknown kernels"
#: A weight buffer in llama-server's log, such as ``AMX model buffer size = 136.06 MiB``.
_BUFFER = re.compile(r"(\S+) model buffer size")
_FEATURE = re.compile(r"(\w+) = 1\b")


def build_of(folder: Path) -> str:
    """Compiler and flags from the ``build.json`` beside a build's libraries or programs, if there is one."""
    try:
        told = json.loads((folder / "build.json").read_text())
    except (OSError, ValueError):
        return UNKNOWN_FLAGS
    return build_text(told)


def build_text(told: Mapping[str, Any]) -> str:
    """The contents of a ``build.json`` as one line."""
    flags = " ".join(_words(told.get("cmake")) + _words(told.get("c_flags")))
    parts = [str(told["compiler"])] if told.get("compiler") else []
    parts.append(f"flags {flags}" if flags else UNKNOWN_FLAGS)
    if variants := _words(told.get("variants")):
        parts.append(f"kernels for {', '.join(variants)}")
    return ", ".join(parts)


def _words(value: Any) -> list[str]:
    """A text or a list of texts as a list."""
    if isinstance(value, str):
        return [value] if value else []
    return [str(part) for part in value if part] if isinstance(value, Iterable) else []


def our_kernels(url: str) -> str:
    """The kernels of our server's children, from its status."""
    with urllib.request.urlopen(f"{url}/v1/status", timeout=10) as answer:  # noqa: S310 - an address of ours
        return kernels_of(json.load(answer))


def kernels_of(status: Mapping[str, Any]) -> str:
    """Each set of kernels that a child names."""
    named = (str(child.get("kernels") or UNKNOWN_KERNELS) for child in status.get("children", ()))
    return "; ".join(dict.fromkeys(named)) or UNKNOWN_KERNELS


def llama_server_version(output: str) -> str:
    """Version and compiler, from the output of ``--version``."""
    lines = [line.strip() for line in output.splitlines()]
    told = [line.removeprefix("version: ") for line in lines if line.startswith(("version", "built with"))]
    return ", ".join(told) or "unknown version"


def llama_server_kernels(log: str) -> str:
    """The features of its kernels and the buffers of the weights, from the log of a start that names them."""
    lines = log.splitlines()
    features = [name for line in lines if "system_info" in line for name in _FEATURE.findall(line)]
    buffers = dict.fromkeys(found[1] for line in lines if (found := _BUFFER.search(line)))
    weights = f"weights in {', '.join(buffers)}" if buffers else ""
    return ", ".join([*dict.fromkeys(features), *filter(None, [weights])]) or UNKNOWN_KERNELS
