"""``python -m loadtest.bare.texts QUESTION``: greedy texts, one at a time, with the likeliest tokens."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bare.build import BuildError
from loadtest.bare.native import Loop, load_kernels
from loadtest.bare.speed import variation_of

#: Likeliest tokens that are noted at each step.
NUM_NOTED = 32


def main() -> int:
    """Generate; one line on standard error and exit status 1 when it fails."""
    try:
        sys.stdout.write(json.dumps(_answer(json.loads(sys.argv[1]))) + "\n")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    load_kernels(Path(asked["folder"]), asked["variant"])
    loop = Loop(
        Path(asked["model"]),
        variation_of(asked),
        slots=1,
        n_ctx=asked["n_predict"] + 256,
        threads=asked["threads"],
    )
    steps = [_generate(loop, prompt, asked["n_predict"]) for prompt in asked["prompts"]]
    pieces = {token: loop.piece(token) for text in steps for step in text for token, _ in step}
    return {"texts": steps, "pieces": pieces, "kernels": loop.describe()}


def _generate(loop: Loop, prompt: str, n_predict: int) -> list[list[tuple[int, float]]]:
    """The likeliest tokens of each step with their logits, best first; the first one is generated."""
    loop.clear()
    tokens = loop.tokenize(prompt)
    loop.fill([(token, pos, 0, pos == len(tokens) - 1) for pos, token in enumerate(tokens)])
    steps = [_likeliest(loop)]
    while len(steps) < n_predict and not loop.ends(steps[-1][0][0]):
        loop.fill([(steps[-1][0][0], len(tokens) + len(steps) - 1, 0, True)])
        steps.append(_likeliest(loop))
    return steps


def _likeliest(loop: Loop) -> list[tuple[int, float]]:
    loop.decode()
    logits = loop.logits()
    found: Sequence[int] = np.argpartition(logits, -NUM_NOTED)[-NUM_NOTED:].tolist()
    best = sorted(found, key=lambda token: (-logits[token], token))
    return [(token, float(logits[token])) for token in best]


if __name__ == "__main__":
    sys.exit(main())
