"""How many of a worker's cores a child may use now: its share, and the shares of idle children.

If only one child has work, it computes with all of the worker's threads. When another child gets work, each
child returns to its share at its next step. More threads than cores would wait for each other at OpenMP's
barriers, so the children's threads together exceed the worker's total for one step at most.
"""

from __future__ import annotations

import mmap
from typing import Protocol


class Threads(Protocol):
    """How many threads a child's engine may compute with."""

    @property
    def least(self) -> int:
        """The child's threads while all children have work."""

    @property
    def most(self) -> int:
        """The child's threads while no other child has work."""

    def work(self) -> int:
        """Note that the child has work; returns its threads for the next step."""

    def rest(self) -> None:
        """Note that the child has nothing to do."""


class CorePool:
    """Divides a worker's threads among its children by shared memory; make it before forking."""

    def __init__(self, children: int, threads: int, most: int | None = None) -> None:
        """``threads`` is for all children together, at least one each; ``most`` limits a child's threads."""
        self._total, self._most = threads, most or threads
        # One byte a child: 1 while it has work. Anonymous memory stays shared across forks.
        self._busy = mmap.mmap(-1, children)
        self._busy[:] = bytes(children)

    def member(self, index: int) -> Threads:
        """The threads of child ``index``, from 0; a child that replaces a dead one takes over its index."""
        return _Member(self, index, self.threads_of(len(self._busy)), self.threads_of(1))

    def mark(self, index: int, *, is_busy: bool) -> None:
        """Note whether a child has work."""
        self._busy[index] = is_busy

    def threads_now(self) -> int:
        """Threads that each child with work gets now."""
        return self.threads_of(sum(self._busy[:]))

    def threads_of(self, num_busy: int) -> int:
        """Threads that each child with work gets if ``num_busy`` children have work."""
        return max(1, min(self._most, self._total // max(1, num_busy)))


class _Member:
    def __init__(self, pool: CorePool, index: int, least: int, most: int) -> None:
        self._pool, self._index = pool, index
        self.least, self.most = least, most
        self.rest()

    def work(self) -> int:
        self._pool.mark(self._index, is_busy=True)
        return self._pool.threads_now()

    def rest(self) -> None:
        self._pool.mark(self._index, is_busy=False)
