"""What a later release might write."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.contract.messages import End, GenerateRequest, State, Timings, Usage
from tasks.contract.status import Child

#: A format version that this release doesn't know.
NEWER = 99


@dataclass(frozen=True)
class WiderRequest(GenerateRequest):
    """A request with a field that older workers may drop."""

    mood: str = "calm"


@dataclass(frozen=True)
class NewerRequest(WiderRequest):
    """A request with a field that a worker must understand."""

    @property
    def version(self) -> int:
        return NEWER


@dataclass(frozen=True)
class WiderChild(Child):
    """A child's registration with more fields."""

    temperature: float = 36.6
    habits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WiderTimings(Timings):
    """More figures, of other types, too."""

    draft_n: int = 5
    layers_ms: tuple[float, ...] = (1.0, 2.0)


@dataclass(frozen=True)
class WiderUsage(Usage):
    """More counts."""

    reasoning_tokens: int = 3


#: A reason to end that this release doesn't know.
REASON = "tool_calls"


@dataclass(frozen=True)
class WiderEnd(End):
    """An end with more fields, within it, too, and with another reason."""

    state: State = State.SUCCEEDED
    finish_reason: str | None = REASON
    usage: Usage | None = field(default_factory=lambda: WiderUsage(5, 1))
    timings: Timings | None = field(default_factory=lambda: WiderTimings(prompt_n=5, predicted_n=1))
    mood: str = "calm"
