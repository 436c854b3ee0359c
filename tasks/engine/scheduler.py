"""What to compute next. Pure: no clock, no thread, no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tasks.engine.costs import Group, StepCosts, cheapest, plain


@dataclass(frozen=True, slots=True)
class Load:
    """One sequence as the scheduler sees it: its slot, and how many tokens have no cells yet."""

    slot: int
    remaining: int
    is_decoding: bool


@dataclass(frozen=True, slots=True)
class Decode:
    """Slots whose newest token is computed in one batch, with rows of padding."""

    slots: tuple[int, ...]
    padding: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """``decode``: batches of next tokens. ``prefill``: slots and tokens of their chunks, one batch.

    Slots are in ascending order everywhere, which keeps llama.cpp from splitting a batch.
    """

    decode: tuple[Decode, ...] = ()
    prefill: tuple[tuple[int, int], ...] = ()

    @property
    def num_decoded(self) -> int:
        """Sequences that get their next token."""
        return sum(len(batch.slots) for batch in self.decode)

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
        costs: measured; ``None`` shapes nothing.
    """

    n_batch: int = 512
    stretch: float = 2.0
    short: int = 32
    chunk: int = 64
    costs: StepCosts | None = field(default=None)

    def beside(self, num_decoding: int) -> int:
        """Prefill tokens of a step that also decodes so many sequences, at least one."""
        if self.costs is None:
            return min(self.chunk, self.n_batch)
        spare_ms = (self.stretch - 1) * self.costs.decode_ms(num_decoding)
        return max(1, min(self.n_batch, int(spare_ms / self.costs.prefill_ms)))


def plan(loads: Sequence[Load], limits: Limits) -> Step:
    """Every decoding sequence's next token, then prefill chunks, first come first served.

    ``loads`` are in order of arrival.
    """
    decoding = sorted(load.slot for load in loads if load.is_decoding)
    waiting = [load for load in loads if not load.is_decoding]
    budget = limits.beside(len(decoding)) if decoding else limits.n_batch
    return Step(tuple(_batches(decoding, limits.costs)), tuple(sorted(_chunks(waiting, budget, limits))))


def _batches(slots: Sequence[int], costs: StepCosts | None) -> Iterator[Decode]:
    groups: tuple[Group, ...] = plain(len(slots)) if costs is None else cheapest(len(slots), costs)
    start = 0
    for group in groups:
        yield Decode(tuple(slots[start : start + group.rows]), group.padding)
        start += group.rows


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
