"""How many slots of each child are taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable


class Slots:
    """Counts each child's jobs, by its pipe; replaces Celery's set of busy children.

    A child is *in* the set, that is, busy, when all its slots are taken.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._taken: Counter[int] = Counter()

    def add(self, pipe: int) -> None:
        """A job was sent."""
        self._taken[pipe] += 1

    def release(self, pipe: int) -> None:
        """A job has ended."""
        self._taken[pipe] = max(0, self._taken[pipe] - 1)

    def discard(self, pipe: int) -> None:
        """The child is gone, with all its jobs."""
        del self._taken[pipe]

    def intersection_update(self, pipes: Collection[int]) -> None:
        """Forget all children but these."""
        self._taken = Counter({pipe: num for pipe, num in self._taken.items() if pipe in pipes})

    def recount(self, pipes: Iterable[int]) -> None:
        """Count again, from the pipes of all jobs, with one entry for each job."""
        self._taken = Counter(pipes)

    def free(self, pipe: int) -> int:
        """How many slots of a child are free."""
        return self._slots - self._taken[pipe]

    def __contains__(self, pipe: int) -> bool:
        return self.free(pipe) <= 0

    def __len__(self) -> int:
        return sum(num >= self._slots for num in self._taken.values())
