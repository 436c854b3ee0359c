"""Tells refused clients when to come back: each a little later, as fast as places become free."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from redis.exceptions import RedisError

#: Most seconds that a client is told to wait. OpenAI's clients try again at most twice. Told more than a
#: minute, they come back at a time of their own, or not at all.
MAX_S = 60
#: Seconds for which a measured rate is used, and the interval between two places while none is known.
MEASURED_S, UNKNOWN_S = 1.0, 1.0
#: A time is spread by this share, so that clients which were refused together don't come back together.
SPREAD = 0.25


@dataclass(slots=True)
class _Refused:
    """The refused clients of a model, who find places one after another; times are monotonic seconds.

    ``last`` is when the last of them does; ``interval_s`` is measured again after ``until``.
    """

    last: float = 0.0
    interval_s: float = UNKNOWN_S
    until: float = field(default=float("-inf"))


class RetryTimes:
    """Gives every refused client a time of its own.

    Args:
        measure: seconds from one free place of a model's queue to the next, as far as known.
        share: how many API processes there are, which all send clients to the same places.
        clock: returns monotonic seconds.
        draw: returns random numbers from 0 to 1.
    """

    def __init__(
        self,
        measure: Callable[[str], float | None],
        share: int = 1,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._measure, self._share, self._clock, self._draw = measure, share, clock, draw
        self._refused: dict[str, _Refused] = {}

    def next_s(self, model: str, ahead: int = 0) -> int:
        """Whole seconds, from 1 to :data:`MAX_S`, until there may be a place for one more client.

        ``ahead`` clients wait in this process for a place already. Never fails: while Redis is away, the last
        measured rate counts.
        """
        refused, now = self._refused.setdefault(model, _Refused()), self._clock()
        interval_s = self._interval_s(model, refused, now)
        refused.last = max(refused.last, now + ahead * interval_s) + interval_s
        if refused.last > now + MAX_S:  # too many: let the rest come at any time in the second half
            refused.last = now + MAX_S
            return math.ceil(MAX_S * (1 - self._draw() / 2))
        spread = 1 + SPREAD * (2 * self._draw() - 1)
        return min(MAX_S, max(1, math.ceil((refused.last - now) * spread)))

    def _interval_s(self, model: str, refused: _Refused, now: float) -> float:
        if now >= refused.until:
            refused.until = now + MEASURED_S  # before it is measured: the others go on with the last one
            with suppress(RedisError):
                refused.interval_s = self._measure(model) or UNKNOWN_S
        return refused.interval_s * self._share
