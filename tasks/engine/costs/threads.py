"""Which of a worker's cores a child may use now: its own, and those of children that have nothing to do.

A child alone with its requests computes with all the worker's threads; as soon as another one has work,
each goes back to its share at its next step. More threads than cores would wait for each other at OpenMP's
barriers, so the sum is never above the worker's total for longer than a step.
"""

from __future__ import annotations

import mmap
from typing import Protocol


class Threads(Protocol):
    """How many threads a child's engine may compute with."""

    @property
    def least(self) -> int:
        """Its share of them, while all children have work."""

    @property
    def most(self) -> int:
        """All of them, while no other child has work."""

    def work(self) -> int:
        """Threads for the next step; the caller has work."""

    def rest(self) -> None:
        """The caller has nothing to do."""


class CorePool:
    """The threads of a worker's children, in memory that they share; made before they are forked."""

    def __init__(self, children: int, threads: int, most: int | None = None) -> None:
        """``threads`` are those of all children together, at least one each; ``most`` bounds one child's."""
        self._total, self._most = threads, most or threads
        # One byte a child: 1 while it has work. Anonymous memory stays shared across forks.
        self._busy = mmap.mmap(-1, children)
        self._busy[:] = bytes(children)

    def member(self, index: int) -> Threads:
        """The child numbered ``index`` from 0; a child that replaces a dead one takes its number."""
        return _Member(self, index, self.threads_of(len(self._busy)), self.threads_of(1))

    def mark(self, index: int, *, is_busy: bool) -> None:
        """Note whether a child has work."""
        self._busy[index] = is_busy

    def threads_now(self) -> int:
        """Threads of each child that has work."""
        return self.threads_of(sum(self._busy[:]))

    def threads_of(self, num_busy: int) -> int:
        """Threads of each child when so many have work."""
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
