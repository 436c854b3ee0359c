"""Sequences that wait for a slot, first come first served."""

from __future__ import annotations

from collections import deque

from tasks.engine.residents import Residents
from tasks.engine.sequence import Sequence


class Waiting:
    """The queue in front of the slots."""

    def __init__(self) -> None:
        self._sequences: deque[Sequence] = deque()
        #: Sequences that held slots when the cache was full; nothing is let in until their number changes.
        self._num_when_full: int | None = None

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, seq: Sequence) -> None:
        """Stand at the end."""
        self._sequences.append(seq)

    def drop(self, key: str) -> None:
        """Forget a job."""
        self._sequences = deque(seq for seq in self._sequences if seq.job.key != key)

    def put_back(self, seq: Sequence, num_resident: int) -> None:
        """Stand at the head again, with no cells: the cache is full beside ``num_resident`` others."""
        seq.computed, seq.waits_for = 0, None
        self._sequences.appendleft(seq)
        self._num_when_full = num_resident or None

    def admit_to(self, residents: Residents, now: float) -> list[Sequence]:
        """Give slots to those that find one; who got one."""
        # After a preemption nothing is let in until a sequence has left: it would only be put back again.
        if self._num_when_full == len(residents):
            return []
        self._num_when_full, admitted = None, []
        while self._sequences and residents.has_room:
            seq = self._sequences.popleft()
            seq.admitted = seq.admitted or now
            residents.add(seq)
            admitted.append(seq)
        return admitted
