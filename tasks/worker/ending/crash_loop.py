"""When a child that died before it was ready is started again, and when that has no prospect any more.

Pure, standard library only: the clock is the caller's. Times are in seconds.
"""

from __future__ import annotations

#: Deaths in a row of the children in one place, before they are ready, until the worker gives up.
MAX_DEATHS = 5
#: Pause after the second death; the first is followed by none, and each further one by twice as much.
FIRST_PAUSE_S = 0.2


class CrashLoop:
    """Counts deaths before readiness by place: the number that a dead child leaves to its replacement."""

    def __init__(self, max_deaths: int = MAX_DEATHS, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._max_deaths, self._first_pause_s = max_deaths, first_pause_s
        self._num_deaths: dict[int, int] = {}
        self._due: dict[int, float] = {}

    def note_death(self, place: int, now: float) -> float | None:
        """A child died before it was ready: seconds until its replacement starts, ``None`` to give up."""
        num = self._num_deaths[place] = self._num_deaths.get(place, 0) + 1
        if num >= self._max_deaths:
            return None
        pause = self._first_pause_s * 2 ** (num - 2) if num > 1 else 0.0
        self._due[place] = now + pause
        return pause

    def note_ready(self, place: int) -> None:
        """A child became ready: its place begins anew."""
        self._num_deaths.pop(place, None)
        self._due.pop(place, None)

    def may_start(self, place: int, now: float) -> bool:
        """Whether a child may be started there now; never once it was given up."""
        is_given_up = self._num_deaths.get(place, 0) >= self._max_deaths
        return not is_given_up and now >= self._due.get(place, now)
