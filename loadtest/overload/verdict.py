"""The result of an overload, against what the queue's cap and the capacity imply; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.arrivals import Arrival
from service.client.load_run import Summary
from tasks.contract.percentile import percentile


@dataclass(frozen=True, slots=True)
class Capacity:
    """The server's speed when it always has enough to do, the queue's cap, and the number of slots."""

    tokens_per_second: float
    requests_per_second: float
    queue_limit: int
    slots: int

    @classmethod
    def of(cls, summary: Summary, queue_limit: int, slots: int) -> Capacity:
        """Make it from a closed loop that kept every slot busy."""
        rate = summary.num_requests / summary.wall_s
        return cls(summary.tokens_per_second, rate, queue_limit, slots)

    @property
    def ttft_bound_s(self) -> float:
        """Longest expected TTFT in seconds: the time to serve a full queue and full slots."""
        return (self.queue_limit + self.slots) / self.requests_per_second


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures of an overload; times are in seconds, ``goodput`` is in tokens per second."""

    num_arrivals: int
    num_refused: int
    errors: tuple[str, ...]
    num_unfinished: int
    ttft_p95_s: float
    refusal_p95_s: float
    late_p95_s: float
    goodput: float

    @classmethod
    def of(cls, arrivals: Sequence[Arrival], n_predict: int) -> Verdict:
        """Sum the arrivals up; an answer of fewer than ``n_predict`` tokens is unfinished."""
        answered = [arrival for arrival in arrivals if arrival.sample is not None]
        refused = [arrival for arrival in arrivals if arrival.is_refused]
        tokens = [arrival.sample.num_tokens for arrival in answered if arrival.sample]
        start = min((arrival.due_s for arrival in answered), default=0.0)
        end = max((arrival.over_s for arrival in answered), default=1.0)
        return cls(
            num_arrivals=len(arrivals),
            num_refused=len(refused),
            errors=tuple(arrival.error for arrival in arrivals if arrival.error is not None),
            num_unfinished=sum(count < n_predict for count in tokens),
            ttft_p95_s=percentile([arrival.ttft_s for arrival in answered], 0.95),
            refusal_p95_s=percentile([arrival.total_s for arrival in refused], 0.95),
            late_p95_s=percentile([arrival.late_s for arrival in arrivals], 0.95),
            goodput=sum(tokens) / (end - start),
        )

    @property
    def num_accepted(self) -> int:
        """Requests that were not refused, including requests that failed later."""
        return self.num_arrivals - self.num_refused


def lines(verdict: Verdict, capacity: Capacity) -> Iterator[str]:
    """The lines of the report."""
    bound, num_lost = capacity.ttft_bound_s, len(verdict.errors) + verdict.num_unfinished
    yield (
        f"capacity, closed loop: {capacity.tokens_per_second:.0f} tok/s, "
        f"{capacity.requests_per_second:.2f} requests/s"
    )
    yield f"{verdict.num_arrivals} arrivals, {verdict.num_accepted} accepted, {verdict.num_refused} refused"
    yield f"accepted that did not finish: {num_lost}" + "".join(f"\n  {e}" for e in set(verdict.errors))
    yield (
        f"accepted, TTFT p95: {verdict.ttft_p95_s:.2f} s; bound (queue limit {capacity.queue_limit} + "
        f"{capacity.slots} slots) / service rate = {bound:.2f} s; ratio {verdict.ttft_p95_s / bound:.2f}"
    )
    yield f"refusals, p95: {verdict.refusal_p95_s * 1e3:.1f} ms"
    yield (
        f"goodput: {verdict.goodput:.0f} tok/s; goodput / capacity "
        f"{verdict.goodput / capacity.tokens_per_second:.2f}"
    )
    yield f"the generator was late by {verdict.late_p95_s * 1e3:.1f} ms (p95), counted in the times above"
