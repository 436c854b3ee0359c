"""One run of one request in a child: what it was claimed with, and the account at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event as Flag
from time import monotonic

from tasks.contract.messages import End, Failure, State, Timings, Usage
from tasks.engine.sequence import Ending
from tasks.store.requests import Claim


@dataclass(slots=True)
class Run:
    """A claimed request on its way through the engine.

    ``seq`` is the last event's number. ``proven`` is set once the run has delivered something, or is over;
    ``over`` when nothing more is to be delivered, because of the end or, ``is_handed_back``, to be
    continued elsewhere. ``end`` is the request's, if this run came to it,
    and ``ending`` the engine's account.
    """

    claim: Claim
    seq: int
    prompt_tokens: int = 0
    num_delivered: int = 0
    claimed_at: float = field(default_factory=monotonic)
    submitted_at: float = 0.0
    proven: Flag = field(default_factory=Flag)
    over: Flag = field(default_factory=Flag)
    is_handed_back: bool = False
    end: End | None = None
    ending: Ending | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.claim.request.id

    @property
    def key(self) -> str:
        """Names this run in the engine; a request may have an older run there that lost its lease."""
        return f"{self.id}:{self.claim.attempt}:{self.claim.fence}"

    def stop(self, *, is_handed_back: bool = False) -> None:
        """Nothing more is to be delivered."""
        self.is_handed_back = is_handed_back
        self.proven.set()
        self.over.set()

    @property
    def is_stream(self) -> bool:
        """Whether somebody waits for each token."""
        return self.claim.request.stream

    @property
    def deadline(self) -> float | None:
        """When the request's time limit ends, on this process's monotonic clock in seconds."""
        limit = self.claim.request.timeout_s
        return None if limit is None else self.claimed_at - self.claim.age_ms / 1e3 + limit

    def failed(self, failure: Failure) -> End:
        """The end of a request that could not be generated."""
        timings = Timings(queue_ms=self.claim.queue_ms, attempts=self.claim.attempt)
        usage = Usage(self.prompt_tokens, self.num_delivered)
        return End(State.FAILED, usage=usage, timings=timings, error=failure)

    def finished(self, ending: Ending) -> End:
        """The end of a request that the engine ended."""
        return End(
            state=State.SUCCEEDED if ending.error is None else State.FAILED,
            finish_reason=ending.reason,
            usage=Usage(self.prompt_tokens, self.num_delivered + ending.predicted_n),
            timings=self._timings(ending),
            error=ending.error,
        )

    def _timings(self, ending: Ending) -> Timings:
        gaps = ending.gaps_ms
        predicted_ms = sum(gaps)
        return Timings(
            prompt_n=ending.prompt_n,
            prompt_ms=round(ending.prompt_ms, 3),
            cache_n=ending.cache_n,
            predicted_n=self.num_delivered + ending.predicted_n,
            predicted_ms=round(predicted_ms, 3),
            predicted_per_second=round(len(gaps) / predicted_ms * 1e3, 3) if predicted_ms else 0.0,
            queue_ms=self.claim.queue_ms,
            ttft_ms=round(self._ttft_ms(ending), 3),
            itl_ms=round(predicted_ms / len(gaps), 3) if gaps else 0.0,
            itl_p95_ms=round(_percentile(gaps, 0.95), 3),
            attempts=self.claim.attempt,
        )

    def _ttft_ms(self, ending: Ending) -> float:
        if self.claim.first_ms is not None:
            return self.claim.first_ms
        if ending.first_ms is None:
            return 0.0
        return self.claim.age_ms + (self.submitted_at - self.claimed_at) * 1e3 + ending.first_ms


def _percentile(values: tuple[float, ...], share: float) -> float:
    """The nearest-rank percentile; 0 of nothing."""
    return sorted(values)[int(share * (len(values) - 1) + 0.5)] if values else 0.0
