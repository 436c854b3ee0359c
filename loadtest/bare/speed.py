"""``python -m loadtest.bare.speed QUESTION``: tokens per second of prefill and of decode, as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadtest.bare.build import BuildError, Variation
from loadtest.bare.native import Loop, load_kernels

Row = tuple[int, int, int, bool]


def main() -> int:
    """Measure; one line on standard error and exit status 1 when it fails."""
    try:
        sys.stdout.write(json.dumps(_answer(json.loads(sys.argv[1]))) + "\n")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    at_once, prompt, answer = asked["at_once"], asked["prompt_tokens"], asked["n_predict"]
    load_kernels(Path(asked["folder"]), asked["variant"])
    loop = Loop(
        Path(asked["model"]),
        variation_of(asked),
        slots=at_once,
        n_ctx=prompt + answer,
        threads=asked["threads"],
    )
    batches = list(_prompts(at_once, prompt, loop.n_batch))
    _timed(loop, [*batches, *_steps(at_once, prompt, min(answer, 4))])  # warms up caches and threads
    loop.clear()
    prefill_s = _timed(loop, batches)
    decode_s = _timed(loop, list(_steps(at_once, prompt, answer)))
    speeds = {"prefill": at_once * prompt / prefill_s, "decode": at_once * answer / decode_s}
    return {**speeds, "kernels": loop.describe()}


def variation_of(asked: dict[str, Any]) -> Variation:
    """The part of a question that says how the build is used."""
    return Variation(*(asked[name] for name in ("variant", "flash_attention", "cache_type", "repack")))


def _prompts(at_once: int, size: int, n_batch: int) -> Iterator[Sequence[Row]]:
    rows = [(1 + pos, pos, seq, pos == size - 1) for seq in range(at_once) for pos in range(size)]
    for start in range(0, len(rows), n_batch):
        yield rows[start : start + n_batch]


def _steps(at_once: int, start: int, count: int) -> Iterator[Sequence[Row]]:
    for pos in range(start, start + count):
        yield [(1 + pos % 100, pos, seq, True) for seq in range(at_once)]


def _timed(loop: Loop, batches: Sequence[Sequence[Row]]) -> float:
    """Seconds that computing takes; filling the batches is not counted."""
    total = 0.0
    for rows in batches:
        loop.fill(rows)
        started = time.perf_counter()
        loop.decode()
        total += time.perf_counter() - started
    return total


if __name__ == "__main__":
    sys.exit(main())
