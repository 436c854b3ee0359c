"""What a later release might write."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.contract.messages import GenerateRequest
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
