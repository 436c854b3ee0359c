"""How long requests wait for their next attempt, as seen from outside."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from redis import RedisError

from tasks.contract import redis_names
from tests.chaos.cluster import Cluster, Running


def resumed_after(
    cluster: Cluster, victims: Iterable[Running], since: float, timeout: float = 60
) -> list[float]:
    """Seconds from ``since`` (monotonic) to the next claim of each victim that was not over by then."""
    waiting = {victim.id: victim.attempt for victim in victims}
    seconds: list[float] = []
    while waiting:
        assert time.monotonic() - since < timeout, f"not claimed again within {timeout} s: {waiting}"
        for request_id, (attempt, is_running) in _look(cluster, waiting).items():
            if attempt > waiting[request_id]:
                seconds.append(time.monotonic() - since)
            if attempt > waiting[request_id] or not is_running:
                del waiting[request_id]
        time.sleep(0.01)
    return seconds


def _look(cluster: Cluster, ids: Iterable[str]) -> dict[str, tuple[int, bool]]:
    asked = list(ids)
    with cluster.redis.pipeline(transaction=False) as pipe:
        for request_id in asked:
            pipe.hmget(redis_names.record(request_id), "attempt", "state")
        try:
            found = pipe.execute()
        except RedisError:
            return {}
    return {i: (int(a or 0), s in (b"running", b"queued")) for i, (a, s) in zip(asked, found, strict=True)}


def summary(seconds: Sequence[float]) -> str:
    """Count, median, 95th percentile and maximum."""
    if not seconds:
        return "none"
    ranked = sorted(seconds)
    p50, p95 = (ranked[int(share * (len(ranked) - 1) + 0.5)] for share in (0.5, 0.95))
    return f"n {len(ranked)}, p50 {p50:.3f} s, p95 {p95:.3f} s, max {ranked[-1]:.3f} s"
