"""One sequence as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to compute for a sequence, and how it was treated so far.

    Attributes:
        slot: where its cells are.
        remaining: tokens that have no cells yet.
        is_decoding: whether that is only its newest token.
        computed: tokens that have cells.
        lag: tokens fewer than its share of those that were generated while it was decoding.
        has_paused: whether it was left out of the last step.
    """

    slot: int
    remaining: int
    is_decoding: bool
    computed: int = 0
    lag: float = 0.0
    has_paused: bool = False
