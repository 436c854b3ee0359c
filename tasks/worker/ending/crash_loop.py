"""Decides when to restart a child that died before it was ready, and when to give up.

Pure, standard library only: the caller passes the time. Times are in seconds.
"""

from __future__ import annotations

#: The worker gives up when so many children in a row died in one place before they were ready.
MAX_DEATHS = 5
#: Pause after the second death. There is none after the first, and each later pause is twice as long.
FIRST_PAUSE_S = 0.2


class CrashLoop:
    """Counts early deaths by place, which is the number that a dead child's replacement takes over."""

    def __init__(self, max_deaths: int = MAX_DEATHS, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._max_deaths, self._first_pause_s = max_deaths, first_pause_s
        self._num_deaths: dict[int, int] = {}
        self._due: dict[int, float] = {}

    def note_death(self, place: int, now: float) -> float | None:
        """Note an early death; return the seconds until the replacement starts, ``None`` to give up."""
        num = self._num_deaths[place] = self._num_deaths.get(place, 0) + 1
        if num >= self._max_deaths:
            return None
        pause = self._first_pause_s * 2 ** (num - 2) if num > 1 else 0.0
        self._due[place] = now + pause
        return pause

    def note_ready(self, place: int) -> None:
        """Note that a child became ready, and forget the deaths in its place."""
        self._num_deaths.pop(place, None)
        self._due.pop(place, None)

    def may_start(self, place: int, now: float) -> bool:
        """Whether a child may be started in a place now; never once the place was given up."""
        is_given_up = self._num_deaths.get(place, 0) >= self._max_deaths
        return not is_given_up and now >= self._due.get(place, now)
