"""What to compute next. Pure: no clock, no thread, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """One sequence as the scheduler sees it: its slot, and how many tokens have no cells yet."""

    slot: int
    remaining: int
    is_decoding: bool


@dataclass(frozen=True, slots=True)
class Step:
    """``decode``: slots whose newest token is computed. ``prefill``: slots and tokens of their chunks.

    Both in ascending order of the slot, which keeps llama.cpp from splitting the batch.
    """

    decode: tuple[int, ...] = ()
    prefill: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens of a batch at most, and of the prefill chunks beside running decodes."""

    n_batch: int = 512
    chunk_beside_decodes: int = 128


def plan(loads: Sequence[Load], limits: Limits) -> Step:
    """Every decoding sequence's next token, then prefill chunks, first come first served.

    ``loads`` are in order of arrival.
    """
    decode = tuple(sorted(load.slot for load in loads if load.is_decoding))
    budget = limits.chunk_beside_decodes if decode else limits.n_batch
    chunks = []
    for load in loads:
        if not load.is_decoding and budget > 0:
            chunk = min(load.remaining, budget)
            chunks.append((load.slot, chunk))
            budget -= chunk
    return Step(decode, tuple(sorted(chunks)))
