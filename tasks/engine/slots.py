"""Chooses the slot of a new sequence, and the cells that it starts from; pure.

A finished sequence's cells stay in its slot until another sequence takes the slot; among equal slots the
least recently used is taken first. A new sequence keeps the cells that its slot has of its first tokens, or
copies more of them from another slot. That slot may be idle, decoding, or still computing the shared tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: A copy must save at least this many tokens to be worth it.
MIN_SHARED = 16


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence goes.

    The first ``kept`` tokens have cells in ``slot``. The slot ``source``, if not ``None``, has or will have
    the cells of the first ``shared`` tokens, which is more.
    """

    slot: int
    kept: int = 0
    source: int | None = None
    shared: int = 0


class SlotTable:
    """Which slots are free, and which tokens' cells each slot has or, while it is taken, will have."""

    def __init__(self, num_slots: int, *, reuses: bool = True, rewinds: bool = True) -> None:
        """If ``reuses`` is false, every sequence starts without cells.

        If ``rewinds`` is false, the model can't drop a sequence's last cells only: a sequence starts from an
        idle slot's cells, all of them, or without cells.
        """
        self._tokens: list[Sequence[int]] = [()] * num_slots
        self._owners = [""] * num_slots
        self._used = [0] * num_slots
        self._free = set(range(num_slots))
        self._reuses, self._rewinds = reuses, rewinds
        self._tick = 0

    @property
    def num_free(self) -> int:
        """Number of slots without a sequence."""
        return len(self._free)

    def take(self, tokens: Sequence[int], owner: str = "") -> Placement:
        """Take a slot for a sequence of ``tokens``; one must be free.

        The last token is never kept or shared, since its logits are needed. ``tokens`` may grow afterwards;
        added tokens count as being in the slot. Sequences of different owners share nothing: how quickly a
        prompt is computed would tell one of them what another one asked.
        """
        prefixes = [self._prefix(slot, tokens, owner) for slot in range(len(self._tokens))]
        slot = max(
            self._candidates(), key=lambda each: (self._continued(each, prefixes[each]), -self._used[each])
        )
        # Among slots that share equally many tokens, the one with the fewest cells is the cheapest to copy.
        source = max(range(len(prefixes)), key=lambda each: (prefixes[each], -len(self._tokens[each])))
        self._free.remove(slot)
        self._tokens[slot], self._owners[slot] = tokens, owner
        if prefixes[source] - prefixes[slot] < MIN_SHARED:
            return Placement(slot, prefixes[slot])
        return Placement(slot, prefixes[slot], source, prefixes[source])

    def has(self, slot: int, tokens: Sequence[int], owner: str = "") -> int:
        """How many of an owner's leading ``tokens`` a slot has or will have; the last token never counts."""
        return self._prefix(slot, tokens, owner)

    def release(self, slot: int, tokens: Sequence[int]) -> None:
        """Free a slot that holds the cells of ``tokens``."""
        self._free.add(slot)
        self._tokens[slot] = tuple(tokens)
        self._tick += 1
        self._used[slot] = self._tick

    def size(self, slot: int) -> int:
        """Number of tokens whose cells an idle slot holds."""
        return len(self._tokens[slot])

    def empty(self, slot: int) -> None:
        """Note that an idle slot's cells are gone."""
        self._tokens[slot] = ()

    def _prefix(self, slot: int, tokens: Sequence[int], owner: str) -> int:
        if not self._reuses or self._owners[slot] != owner:
            return 0
        size = min(common_prefix(self._tokens[slot], tokens), len(tokens) - 1)
        is_usable = self._rewinds or (slot in self._free and size == len(self._tokens[slot]))
        return size if is_usable else 0

    def _continued(self, slot: int, prefix: int) -> int:
        """The part of a prefix that counts: none if many tokens follow, which their own next turn may need.

        A sequence that shares only a system prompt copies that from there into another slot.
        """
        tail = len(self._tokens[slot]) - prefix
        return prefix if tail <= max(MIN_SHARED, prefix // 4) else 0

    def _candidates(self) -> Iterable[int]:
        """Free slots that keep the ids of taken slots consecutive; else llama.cpp would split a batch."""
        taken = set(range(len(self._tokens))) - self._free
        if not taken:
            return self._free
        low, high = min(taken), max(taken)
        return self._free & set(range(low, high)) or self._free & {low - 1, high + 1}


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are the same; bisects, so that C code compares long sequences."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
