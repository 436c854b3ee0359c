"""Decides when a part that died starts again, and when it has died too often."""

from __future__ import annotations

from collections import deque


class Backoff:
    """Doubles the delay with each death inside a window, and gives up after ``max_deaths`` in the window.

    The caller reads the clock. All times are in seconds.
    """

    def __init__(self, max_deaths: int = 5, window_s: float = 60.0, first_s: float = 0.1) -> None:
        self._deaths: deque[float] = deque(maxlen=max_deaths)
        self._window_s = window_s
        self._first_s = first_s

    def delay_after_death(self, now: float) -> float | None:
        """Seconds to wait before the next start, or ``None`` to give up."""
        while self._deaths and self._deaths[0] < now - self._window_s:
            self._deaths.popleft()
        if len(self._deaths) == self._deaths.maxlen:
            return None
        self._deaths.append(now)
        return self._first_s * float(2 ** (len(self._deaths) - 1)) if len(self._deaths) > 1 else 0.0
