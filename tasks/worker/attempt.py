"""One attempt at a request in a child: what the claim returned, and the figures at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event as Flag
from time import monotonic

from tasks.contract.messages import End, Failure, GenerateRequest, State, Timings, Usage
from tasks.contract.percentile import percentile
from tasks.engine.sequence import Ending


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A claimed request in the engine; it is this child's until a later attempt claims it.

    Attributes:
        request: what was asked.
        number: 1 for the first attempt.
        fence: a unique word that names this attempt.
        queue_ms: acceptance to the first attempt's claim.
        age_ms: acceptance to this claim.
        first_ms: acceptance to the first token, if an earlier attempt delivered it.
        first_seq: number of the last event before this attempt.
        owner: whose request it is (:attr:`tasks.store.requests.Record.owner`).
        seq: number of the last event.
        told_at: when Redis last said that this attempt goes on (monotonic, s).
        proven: set once it has delivered something, or is over.
        over: set when nothing more is to be delivered: the request has ended, or, if ``is_handed_back``,
            continues elsewhere.
        end: the request's end, if this attempt reached it.
        ending: the engine's report on the end.
    """

    request: GenerateRequest
    number: int
    fence: str
    queue_ms: float
    age_ms: float
    first_ms: float | None
    first_seq: int
    owner: str = ""
    seq: int = field(init=False)
    prompt_tokens: int = 0
    num_delivered: int = 0
    claimed_at: float = field(default_factory=monotonic, compare=False)
    submitted_at: float = 0.0
    told_at: float = field(default_factory=monotonic, compare=False)
    proven: Flag = field(default_factory=Flag, compare=False)
    over: Flag = field(default_factory=Flag, compare=False)
    is_handed_back: bool = False
    end: End | None = None
    ending: Ending | None = None

    def __post_init__(self) -> None:
        self.seq = self.first_seq

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def key(self) -> str:
        """Names this attempt in the engine, which may still have an older attempt that lost its lease."""
        return f"{self.id}:{self.number}:{self.fence}"

    def stop(self, *, is_handed_back: bool = False) -> None:
        """Mark the attempt as over: nothing more is to be delivered."""
        self.is_handed_back = is_handed_back
        self.proven.set()
        self.over.set()

    @property
    def is_stream(self) -> bool:
        """Whether the client waits for each token."""
        return self.request.stream

    @property
    def deadline(self) -> float | None:
        """When the request's time limit ends, on this process's monotonic clock in seconds."""
        limit = self.request.timeout_s
        return None if limit is None else self.claimed_at - self.age_ms / 1e3 + limit

    def failed(self, failure: Failure) -> End:
        """The end of a request that could not be generated."""
        timings = Timings(queue_ms=self.queue_ms, attempts=self.number)
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
            queue_ms=self.queue_ms,
            ttft_ms=round(self._ttft_ms(ending), 3),
            itl_ms=round(predicted_ms / len(gaps), 3) if gaps else 0.0,
            itl_p95_ms=round(percentile(gaps, 0.95), 3),
            attempts=self.number,
        )

    def _ttft_ms(self, ending: Ending) -> float:
        if self.first_ms is not None:
            return self.first_ms
        if ending.first_ms is None:
            return 0.0
        return self.age_ms + (self.submitted_at - self.claimed_at) * 1e3 + ending.first_ms
