"""How quickly places in a model's queue become free."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, cast

from tasks.contract import redis_names, versions
from tasks.contract.tolerant import read_or_warn
from tasks.store.status_reader import Finished

if TYPE_CHECKING:
    from redis import Redis

#: How many of the latest finished requests count.
NUM_LATEST = 32


@dataclass(frozen=True, slots=True)
class _Latest:
    """When the model's latest requests were claimed, the time now, and what finished lately; in seconds."""

    claims: list[float]
    now: float
    finished: list[bytes]


class DrainRate:
    """Measures it from what the scripts keep; one round trip."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def interval_s(self, model: str, slots: int) -> float | None:
        """Seconds from one free place to the next while all ``slots`` are busy; ``None`` if not known.

        A full queue drains as fast as slots become free: that is the mean time for which the latest requests
        had their slots, over the number of slots. The claims alone would not tell: those before the queue was
        full came as the requests did. But the time since the latest claim counts, so that a stalled queue
        shows. Raises ``redis.RedisError``.
        """
        latest = self._latest(model)
        since_claim = max(0.0, latest.now - latest.claims[0]) if latest.claims else 0.0
        spent = [ms / 1e3 for raw in latest.finished if (ms := _slot_ms(raw, model))]
        if spent and slots:
            return max(fmean(spent) / slots, since_claim)
        if not latest.claims:
            return None
        return max(0.0, latest.now - latest.claims[-1]) / len(latest.claims)

    def _latest(self, model: str) -> _Latest:
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.lrange(redis_names.claims(model), 0, -1)
            pipe.time()
            pipe.lrange(redis_names.RECENT, 0, NUM_LATEST - 1)
            claims, (seconds, micros), finished = pipe.execute()
        times = [float(time) for time in cast("list[bytes]", claims)]
        return _Latest(times, seconds + micros / 1e6, finished)


def _slot_ms(raw: bytes, model: str) -> float:
    """For how long a finished request had a slot; 0 if it is another model's or had none."""
    found = read_or_warn(Finished, raw, "finished request", versions.EVENT)
    if found is None or found.model != model or found.end.timings is None:
        return 0.0
    return found.end.timings.prompt_ms + found.end.timings.predicted_ms
