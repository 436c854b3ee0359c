"""What to compute next. Pure: no clock, no thread, no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.engine.costs.shape import StepCosts, padding


class Load(Protocol):
    """A sequence as the scheduler sees it."""

    @property
    def slot(self) -> int:
        """Where its cells are."""

    @property
    def remaining(self) -> int:
        """Tokens that have no cells yet."""

    @property
    def is_decoding(self) -> bool:
        """Whether that is only its newest token."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is computed: a batch of next tokens, then a batch of prompt chunks.

    Slots are in ascending order everywhere, which keeps llama.cpp from splitting a batch.

    Attributes:
        decode: slots of the sequences that get their next token.
        padding: rows added to that batch and thrown away.
        draft: guesses that are checked after a lone sequence's newest token.
        prefill: slots and tokens of their chunks.
    """

    decode: tuple[int, ...] = ()
    padding: int = 0
    draft: tuple[int, ...] = ()
    prefill: tuple[tuple[int, int], ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of the batch of next tokens; 0 if there is none."""
        return len(self.decode) + self.padding + len(self.draft)

    @property
    def num_prefilled(self) -> int:
        """Prompt tokens computed."""
        return sum(size for _, size in self.prefill)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step.

    Attributes:
        n_batch: tokens of a batch at most.
        stretch: how much longer prefill may make a step that also decodes: 2 doubles the others' inter-token
            latency at most.
        short: a prompt of so few tokens left is computed whole: cut up, it would take longer and delay
            the others as much.
        chunk: prefill tokens beside decodes while the costs are unknown.
        costs: measured; ``None`` where they are not.
    """

    n_batch: int = 512
    stretch: float = 2.0
    short: int = 32
    chunk: int = 64
    costs: StepCosts | None = None

    def beside(self, num_decoding: int) -> int:
        """Prefill tokens of a step that also decodes so many sequences, at least one."""
        if self.costs is None:
            return min(self.chunk, self.n_batch)
        spare_ms = (self.stretch - 1) * self.costs.decode_ms(num_decoding)
        return max(1, min(self.n_batch, int(spare_ms / self.costs.prefill_ms)))


def plan(loads: Sequence[Load], limits: Limits) -> Step:
    """Every decoding sequence's next token, then prompt chunks, first come first served.

    ``loads`` are in order of arrival.
    """
    slots = sorted(load.slot for load in loads if load.is_decoding)
    waiting = [load for load in loads if not load.is_decoding]
    budget = limits.beside(len(slots)) if slots else limits.n_batch
    return Step(
        decode=tuple(slots),
        padding=0 if limits.costs is None else padding(len(slots), limits.costs),
        prefill=tuple(sorted(_chunks(waiting, budget, limits))),
    )


def _chunks(waiting: Sequence[Load], budget: int, limits: Limits) -> Iterator[tuple[int, int]]:
    """Share a budget out; a short prompt may exceed what is left of it, but not the batch."""
    room = limits.n_batch
    for load in waiting:
        if budget <= 0 or room <= 0:
            return
        is_short = load.remaining <= limits.short
        chunk = min(load.remaining, room, load.remaining if is_short else budget)
        yield load.slot, chunk
        budget, room = budget - chunk, room - chunk
