"""The libraries that are installed here, used without a server around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtest.bare.build import Build, BuildError, Variation
from loadtest.same_texts.verdict import difference
from tasks.engine.kept import library_folder

pytestmark = pytest.mark.e2e

SPEED = {"at_once": 2, "prompt_tokens": 8, "n_predict": 2, "threads": 1}


@pytest.fixture
def texts(model_path: Path) -> dict[str, Any]:
    return {"model": str(model_path), "prompts": ["The tides are caused by"], "n_predict": 4, "threads": 1}


def test_speeds_and_what_computed_them(model_path: Path):
    told = Build("here", library_folder()).ask("loadtest.bare.speed", {**SPEED, "model": str(model_path)})
    assert told["prefill"] > 0
    assert told["decode"] > 0
    assert told["kernels"]["file"].startswith("libggml-cpu")
    assert told["kernels"]["buffers"]


def test_a_build_generates_what_it_generated_before(texts: dict[str, Any]):
    first, second = (Build("here", library_folder()).ask("loadtest.bare.texts", texts) for _ in range(2))
    (one,), (other,) = first["texts"], second["texts"]
    assert difference("p", one, other) is None
    assert all(str(step[0][0]) in first["pieces"] for step in one)


def test_weights_stay_as_in_the_file_without_repacking(texts: dict[str, Any]):
    told = Build("as is", library_folder(), Variation(repack=False)).ask("loadtest.bare.texts", texts)
    assert all(
        name.startswith("CPU") and "REPACK" not in name for name in told["kernels"]["buffers"].split(", ")
    )


@pytest.mark.parametrize(
    ("variation", "reason"),
    [(Variation("no-such-kernels"), "no-such-kernels"), (Variation(cache_type="q99"), "kv=q99")],
)
def test_what_cannot_be_had_is_said(texts: dict[str, Any], variation: Variation, reason: str):
    with pytest.raises(BuildError, match=reason):
        Build("here", library_folder(), variation).ask("loadtest.bare.texts", texts)
