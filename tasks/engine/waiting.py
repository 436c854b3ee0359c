"""Sequences that wait for a slot, first come first served."""

from __future__ import annotations

from collections import deque

from tasks.engine.residents import Residents
from tasks.engine.sequence import Sequence


class Waiting:
    """The queue in front of the slots."""

    def __init__(self) -> None:
        self._sequences: deque[Sequence] = deque()
        #: How many sequences held slots when the cache was full; none is let in until that number changes.
        self._num_when_full: int | None = None

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, seq: Sequence) -> None:
        """Put a sequence at the end of the queue."""
        self._sequences.append(seq)

    def drop(self, key: str) -> None:
        """Remove a job from the queue."""
        self._sequences = deque(seq for seq in self._sequences if seq.job.key != key)

    def overdue(self, now: float) -> list[Sequence]:
        """Remove the sequences whose time is over, and return them."""
        late = [seq for seq in self._sequences if seq.job.is_overdue(now)]
        if late:
            self._sequences = deque(seq for seq in self._sequences if not seq.job.is_overdue(now))
        return late

    def put_back(self, seq: Sequence, num_resident: int) -> None:
        """Put a sequence at the head, without cells: ``num_resident`` other sequences fill the cache."""
        seq.computed, seq.waits_for = 0, None
        self._sequences.appendleft(seq)
        self._num_when_full = num_resident or None

    def admit_to(self, residents: Residents, now: float) -> list[Sequence]:
        """Give free slots to waiting sequences; returns the sequences that got one."""
        # After a preemption no sequence is let in until another has left: it would only be put back again.
        if self._num_when_full == len(residents):
            return []
        self._num_when_full, admitted = None, []
        while self._sequences and residents.has_room:
            seq = self._sequences.popleft()
            seq.admitted = seq.admitted or now
            residents.add(seq)
            admitted.append(seq)
        return admitted
