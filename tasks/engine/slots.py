"""Which slot a new sequence takes, and whose cells it can start from. Pure.

A finished sequence's cells stay in its slot until another one needs it, least recently used first. A new
sequence keeps what its slot has of its tokens, or copies more from another slot: one that is idle, one that
is decoding, or one that is only just computing the shared part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Tokens that a copy must save to be worth it.
MIN_SHARED = 16


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence goes.

    ``kept`` leading tokens have cells in ``slot``; ``source``, if not ``None``, has or will have ``shared``
    of them, which is more.
    """

    slot: int
    kept: int = 0
    source: int | None = None
    shared: int = 0


class SlotTable:
    """Free and taken slots, and the tokens whose cells each has or, while it is taken, will have."""

    def __init__(self, num_slots: int, *, reuses: bool = True) -> None:
        """With ``reuses`` false every sequence starts from nothing."""
        self._tokens: list[Sequence[int]] = [()] * num_slots
        self._used = [0] * num_slots
        self._free = set(range(num_slots))
        self._reuses = reuses
        self._tick = 0

    @property
    def num_free(self) -> int:
        """Slots without a sequence."""
        return len(self._free)

    def take(self, tokens: Sequence[int]) -> Placement:
        """Take a slot for a sequence of ``tokens``; there is a free one.

        The last token is never among the kept or shared ones, since its logits are needed. ``tokens`` may
        grow afterwards; what is added counts as being in the slot.
        """
        prefixes = [self._prefix(slot, tokens) for slot in range(len(self._tokens))]
        slot = max(self._candidates(), key=lambda each: (prefixes[each], -self._used[each]))
        # Of those that share as much, the shortest is the cheapest to copy.
        source = max(range(len(prefixes)), key=lambda each: (prefixes[each], -len(self._tokens[each])))
        self._free.remove(slot)
        self._tokens[slot] = tokens
        if prefixes[source] - prefixes[slot] < MIN_SHARED:
            return Placement(slot, prefixes[slot])
        return Placement(slot, prefixes[slot], source, prefixes[source])

    def has(self, slot: int, tokens: Sequence[int]) -> int:
        """How many leading ``tokens`` a slot has or will have, but the last."""
        return self._prefix(slot, tokens)

    def release(self, slot: int, tokens: Sequence[int]) -> None:
        """Free a slot that holds the cells of ``tokens``."""
        self._free.add(slot)
        self._tokens[slot] = tuple(tokens)
        self._tick += 1
        self._used[slot] = self._tick

    def size(self, slot: int) -> int:
        """Tokens whose cells an idle slot holds."""
        return len(self._tokens[slot])

    def empty(self, slot: int) -> None:
        """Note that an idle slot's cells are gone."""
        self._tokens[slot] = ()

    def _prefix(self, slot: int, tokens: Sequence[int]) -> int:
        if not self._reuses:
            return 0
        return min(common_prefix(self._tokens[slot], tokens), len(tokens) - 1)

    def _candidates(self) -> Iterable[int]:
        """Free slots that keep the ids of the taken ones consecutive, which llama.cpp's batches want."""
        taken = set(range(len(self._tokens))) - self._free
        if not taken:
            return self._free
        low, high = min(taken), max(taken)
        return self._free & set(range(low, high)) or self._free & {low - 1, high + 1}


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are the same; by halving, so that long ones are compared in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
