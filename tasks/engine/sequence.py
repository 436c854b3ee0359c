"""The engine's jobs, its answers to them, and the state of one sequence in between."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.contract.messages import Failure, FinishReason, Sampling
from tasks.engine.speculation import PromptLookup
from tasks.engine.text import TextAssembler


@dataclass(frozen=True, slots=True)
class Job:
    """One request to generate tokens.

    Attributes:
        key: names the job in deltas and cancels; unique in the engine.
        prompt: token ids, at least one.
        max_tokens: most tokens to generate, including ``delivered``.
        delivered: tokens that an earlier attempt generated and the client has; they are computed but not
            delivered again.
        deadline: time on the engine's clock in seconds, or ``None``.
        owner: only sequences of one owner share prefixes.
    """

    key: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    delivered: tuple[int, ...] = ()
    deadline: float | None = None
    owner: str = ""

    def is_overdue(self, now: float) -> bool:
        """Whether the deadline is past."""
        return self.deadline is not None and now >= self.deadline


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended, and what it cost; times in milliseconds.

    ``prompt_n`` prompt tokens were computed and ``cache_n`` reused. ``first_ms`` is the time from submission
    to the first new token (``None`` if there was none); ``gaps_ms`` are the times between new tokens.
    """

    reason: FinishReason | None = None
    error: Failure | None = None
    prompt_n: int = 0
    cache_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    first_ms: float | None = None
    gaps_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step gave one job: maybe some text, maybe tokens, maybe the end."""

    key: str
    text: str = ""
    tokens: tuple[int, ...] = ()
    ending: Ending | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the step gave nothing."""
        return not (self.text or self.tokens or self.ending)


@dataclass(slots=True)
class Sequence:
    """A job in the engine, in a slot or waiting for one.

    ``tokens`` are all known tokens; the first ``computed`` of them have cells.
    If only a generated token has no cell, the sequence is decoding; otherwise its prompt is being prefilled.
    ``lookup`` guesses its next tokens; ``None``: no guessing.
    ``waits_for`` is the slot whose cells it will copy, and how many of them.
    """

    job: Job
    tokens: list[int]
    assembler: TextAssembler
    submitted: float
    admitted: float = 0.0
    slot: int = -1
    computed: int = 0
    cache_n: int = 0
    waits_for: tuple[int, int] | None = None
    lookup: PromptLookup | None = None
    num_new: int = 0
    num_faults: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        """Number of tokens without cells."""
        return len(self.tokens) - self.computed

    @property
    def is_decoding(self) -> bool:
        """Whether only a newly generated token is to be computed."""
        return self.remaining == 1 and self.num_new > 0

    def add(self, token: int, now: float) -> None:
        """Add a token that was sampled at ``now``."""
        self.times.append(now)
        self.num_new += 1
        self.tokens.append(token)
        if self.lookup is not None:
            self.lookup.extend(token)

    @property
    def num_generated(self) -> int:
        """Number of tokens generated in this and earlier attempts."""
        return self.num_new + len(self.job.delivered)

    def ending(self, reason: FinishReason | None = None, error: Failure | None = None) -> Ending:
        """An ending with this sequence's counts and times so far."""
        prompt_n = len(self.job.prompt) + len(self.job.delivered)
        first = self.times[0] if self.times else None
        return Ending(
            reason=reason,
            error=error,
            prompt_n=prompt_n - self.cache_n,
            cache_n=self.cache_n,
            prompt_ms=0.0 if first is None else (first - self.admitted) * 1e3,
            predicted_n=self.num_new,
            first_ms=None if first is None else (first - self.submitted) * 1e3,
            gaps_ms=tuple((b - a) * 1e3 for a, b in zip(self.times, self.times[1:], strict=False)),
        )
