"""Drops to one thread while another program occupies a core; pure.

Threads that compute together wait for each other at barriers many times a step. When another program takes
one of their cores, each barrier lasts until that program gives the core back, and a step takes a hundred
times as long. (Measured on two cores with two threads: one busy program cut 100 steps a second to less than
one; a single thread still did 32.) So if steps are slower than with one thread alone, the engine computes
with one thread for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A step is slow if it takes more than this many times as long as one thread alone, as measured.
SLOW = 2.0
#: After this many slow steps in a row the engine drops to one thread.
STRIKES = 2
#: Seconds with one thread, at first and at most; they double each time.
FIRST_S, MAX_S = 0.5, 30.0


@dataclass(slots=True)
class Governor:
    """Decides between all available threads and one."""

    _strikes: int = 0
    _alone_until: float = 0.0
    _alone_s: float = FIRST_S

    def choose(self, threads: int, now: float) -> int:
        """Number of threads for the next step; ``now`` in seconds."""
        return 1 if now < self._alone_until else threads

    def observe(self, threads: int, took_ms: float, alone_ms: float, now: float) -> None:
        """Note that a step with ``threads`` took ``took_ms``; one thread alone needs ``alone_ms``."""
        if threads <= 1:
            return
        if took_ms <= SLOW * alone_ms:
            self._strikes, self._alone_s = 0, FIRST_S
            return
        self._strikes += 1
        if self._strikes >= STRIKES:
            self._alone_until = now + self._alone_s
            # The next time, one slow step is enough.
            self._strikes, self._alone_s = STRIKES - 1, min(2 * self._alone_s, MAX_S)
