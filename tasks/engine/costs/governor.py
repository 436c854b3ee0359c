"""Whether several threads are worth having now. Pure.

Threads that compute together wait for each other at barriers many times a step. When another program takes
one of their cores, each barrier lasts as long as that program is let run, and a step takes a hundred times
as long (measured: one busy program beside two threads on two cores, 100 steps a second became less than
one, where a single thread still did 32). So a step slower than one thread alone would have been is a sign to
compute alone for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How much slower than one thread's measured time a step must be to count.
SLOW = 2.0
#: Such steps in a row before computing alone; seconds of that at first and at most, doubled each time.
STRIKES = 2
FIRST_S, MAX_S = 0.5, 30.0


@dataclass(slots=True)
class Governor:
    """Decides between the threads there are and one."""

    _strikes: int = 0
    _alone_until: float = 0.0
    _alone_s: float = FIRST_S

    def choose(self, threads: int, now: float) -> int:
        """Threads for the next step; ``now`` in seconds."""
        return 1 if now < self._alone_until else threads

    def observe(self, threads: int, took_ms: float, alone_ms: float, now: float) -> None:
        """Note that a step with ``threads`` took so long, where one thread alone needs ``alone_ms``."""
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
