"""Plans what to compute next; pure: no clock, no thread, no model."""

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
        """Number of tokens that have no cells yet."""

    @property
    def is_decoding(self) -> bool:
        """Whether only its newest token has no cell."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step computes: a batch of next tokens, then a batch of prompt chunks.

    Slots are in ascending order everywhere, which keeps llama.cpp from splitting a batch.

    Attributes:
        decode: slots of the sequences that get their next token.
        padding: number of rows added to that batch; their results are thrown away.
        draft: guessed tokens to check after a lone sequence's newest token.
        prefill: for each prompt chunk, its slot and its number of tokens.
    """

    decode: tuple[int, ...] = ()
    padding: int = 0
    draft: tuple[int, ...] = ()
    prefill: tuple[tuple[int, int], ...] = ()

    @property
    def num_rows(self) -> int:
        """Number of rows of the batch of next tokens; 0 if there is no such batch."""
        return len(self.decode) + self.padding + len(self.draft)

    @property
    def num_prefilled(self) -> int:
        """Number of prompt tokens computed."""
        return sum(size for _, size in self.prefill)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a step.

    Attributes:
        n_batch: most tokens of a batch.
        stretch: how many times as long prefill may make a step that also decodes; 2 at most doubles the
            inter-token latency of decoding sequences.
        short: a prompt with at most this many tokens left is computed whole; in pieces it would take longer
            and delay the others as much.
        chunk: prefill tokens of a step that also decodes, while the costs are unknown.
        costs: measured costs; ``None`` if they are unknown.
    """

    n_batch: int = 512
    stretch: float = 2.0
    short: int = 32
    chunk: int = 64
    costs: StepCosts | None = None

    def beside(self, num_decoding: int) -> int:
        """Prefill tokens, at least one, of a step that also decodes ``num_decoding`` sequences."""
        if self.costs is None:
            return min(self.chunk, self.n_batch)
        spare_ms = (self.stretch - 1) * self.costs.decode_ms(num_decoding)
        return max(1, min(self.n_batch, int(spare_ms / self.costs.prefill_ms)))


def plan(loads: Sequence[Load], limits: Limits) -> Step:
    """Plan every decoding sequence's next token, then prompt chunks, first come first served.

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
    """Divide the budget among prompts; a short prompt may exceed the rest of it, but not the batch."""
    room = limits.n_batch
    for load in waiting:
        if budget <= 0 or room <= 0:
            return
        is_short = load.remaining <= limits.short
        chunk = min(load.remaining, room, load.remaining if is_short else budget)
        yield load.slot, chunk
        budget, room = budget - chunk, room - chunk
