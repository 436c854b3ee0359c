"""Which slot a new sequence takes, and which of its old cells it can keep. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class SlotTable:
    """Free and taken slots, and the tokens whose cells each slot still holds."""

    def __init__(self, num_slots: int) -> None:
        self._resident: list[tuple[int, ...]] = [()] * num_slots
        self._free = set(range(num_slots))

    @property
    def num_free(self) -> int:
        """Slots without a sequence."""
        return len(self._free)

    def take(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The lowest free slot, and how many leading ``tokens`` have cells there.

        The lowest one keeps the ids of running sequences consecutive. The last token is always computed,
        since its logits are needed.
        """
        slot = min(self._free)
        self._free.remove(slot)
        return slot, min(common_prefix(self._resident[slot], tokens), len(tokens) - 1)

    def release(self, slot: int, tokens: Sequence[int]) -> None:
        """Free a slot that holds the cells of ``tokens``."""
        self._free.add(slot)
        self._resident[slot] = tuple(tokens)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    size = min(len(a), len(b))
    for i in range(size):
        if a[i] != b[i]:
            return i
    return size
