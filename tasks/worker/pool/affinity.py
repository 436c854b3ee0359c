"""Which child has a conversation's earlier turns; pure, standard library only.

The worker's parent remembers which prefixes (:mod:`tasks.contract.prefixes`) it gave to which child.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

#: Digests remembered of each child.
MAX_KEPT = 1024
#: Messages that must be the same to prefer a child to a freer one. One is not enough: soon every child has
#: computed the system prompt.
MIN_DEPTH = 2
#: Prefer the conversation's child unless it has more requests than the alternative by more than this: waiting
#: for a slower batch costs more than computing a prefix again.
MAX_LEAD = 2


class Affinity:
    """The prefixes that each child was given lately; any number may name a child."""

    def __init__(self) -> None:
        self._known: dict[int, OrderedDict[str, None]] = {}

    def note(self, child: int, names: Sequence[str]) -> None:
        """A child was given a request with these prefixes."""
        known = self._known.setdefault(child, OrderedDict())
        for name in names:
            known[name] = None
            known.move_to_end(name)
        while len(known) > MAX_KEPT:
            known.popitem(last=False)

    def forget(self, child: int) -> None:
        """A child is gone."""
        self._known.pop(child, None)

    def depth(self, child: int, names: Sequence[str]) -> int:
        """How many of a request's prefixes, shortest first, a child was given; the longest counts."""
        known: Collection[str] = self._known.get(child, ())
        return max((i for i, name in enumerate(names, start=1) if name in known), default=0)

    def choose(
        self, free: Mapping[int, int], names: Sequence[str], advised: Collection[int] | None = None
    ) -> int:
        """Choose the child for a request, of all children with their numbers of ``free`` slots.

        It is the child with the longest prefix of the conversation, unless that is much busier than the
        freest of the ``advised`` children (:mod:`tasks.worker.pool.placement`; default: all); else that one.
        """
        advised = free if advised is None else advised
        most = max(free[child] for child in advised)

        def rank(child: int) -> tuple[int, bool, int, int]:
            depth = self.depth(child, names)
            is_near = depth >= MIN_DEPTH and free[child] > 0 and most - free[child] <= MAX_LEAD
            return (depth if is_near else 0, child in advised, free[child], depth)

        return max(free, key=rank)
