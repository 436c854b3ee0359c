"""Which children with work have said nothing for too long; pure. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Silence:
    beats: int
    seconds: float


class SilenceWatch:
    """Adds up how long each child has been silent, in the time during which this process itself ran.

    If the whole machine, or the worker with all its children, was stopped for an hour, the next look comes an
    hour late; it counts as one interval, so that nobody is blamed for the pause.
    """

    def __init__(self, patience_s: float, interval_s: float) -> None:
        """``patience_s``: how long a child may be silent; ``interval_s``: between two looks."""
        self._patience_s, self._interval_s = patience_s, interval_s
        self._looked_at: float | None = None
        self._known: dict[int, _Silence] = {}

    def look(self, beats: Mapping[int, int], now: float) -> list[int]:
        """The children that have been silent for too long.

        ``beats`` has, by process id, how often each child that has work has beaten so far.
        """
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, self._interval_s)
        self._looked_at = now
        self._known = {child: self._heard(child, num, passed) for child, num in beats.items()}
        return [child for child, silence in self._known.items() if silence.seconds >= self._patience_s]

    def _heard(self, child: int, beats: int, passed: float) -> _Silence:
        before = self._known.get(child)
        is_silent = before is not None and before.beats == beats
        return _Silence(beats, before.seconds + passed if before is not None and is_silent else 0.0)
