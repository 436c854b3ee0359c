"""The pauses of a channel whose commands Redis refuses: it keeps its connection and tries again later."""

from __future__ import annotations

from time import monotonic

from redis.backoff import ExponentialBackoff

from tasks.store.board import Board

#: Seconds of the first pause and of the longest.
FIRST_S, LONGEST_S = 0.1, 2.0


class Patience:
    """Says when ``who`` may try again; its trouble is on the ``board`` meanwhile."""

    def __init__(self, board: Board, who: str) -> None:
        self._board, self._who = board, who
        self._backoff = ExponentialBackoff(cap=LONGEST_S, base=FIRST_S)
        self._failures, self._until = 0, 0.0

    @property
    def may_try(self) -> bool:
        """Whether the pause, if there is one, has ended."""
        return not self._failures or monotonic() >= self._until

    def note(self, error: BaseException) -> None:
        """Begin a pause, longer than the one before."""
        self._until = monotonic() + self._backoff.compute(self._failures)
        self._failures += 1
        self._board.note(self._who, error)

    def over(self) -> None:
        """Note a success; cheap without a failure before, whichever channel it was noted by."""
        self._failures = 0
        self._board.over(self._who)
