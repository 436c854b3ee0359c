"""What to compute next. Pure: no clock, no thread, no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tasks.engine.costs.shape import Group, StepCosts, cheapest, num_rows, plain, quickest
from tasks.engine.load import Load
from tasks.engine.turns import exchange, may_pause, pausing


@dataclass(frozen=True, slots=True)
class Decode:
    """Slots whose newest token is computed in one batch, with rows of padding."""

    slots: tuple[int, ...]
    padding: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What is computed, in this order.

    Slots are in ascending order everywhere, which keeps llama.cpp from splitting a batch.

    Attributes:
        decode: batches of next tokens.
        prefill: slots and tokens of their chunks, one batch.
        paused: slots of decoding sequences that get no token.
        exchange: slots whose sequences change places afterwards.
    """

    decode: tuple[Decode, ...] = ()
    prefill: tuple[tuple[int, int], ...] = ()
    paused: tuple[int, ...] = ()
    exchange: tuple[int, int] | None = None

    @property
    def num_decoded(self) -> int:
        """Sequences that get their next token."""
        return sum(len(batch.slots) for batch in self.decode)

    @property
    def share(self) -> float:
        """The part of the decoding sequences that gets a token."""
        return self.num_decoded / max(1, self.num_decoded + len(self.paused))

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
        pauses: whether sequences may be left out of a step where that makes more tokens per second.
    """

    n_batch: int = 512
    stretch: float = 2.0
    short: int = 32
    chunk: int = 64
    costs: StepCosts | None = field(default=None)
    pauses: bool = True

    def beside(self, num_decoding: int) -> int:
        """Prefill tokens of a step that also decodes so many sequences, at least one."""
        if self.costs is None:
            return min(self.chunk, self.n_batch)
        spare_ms = (self.stretch - 1) * self.costs.decode_ms(num_decoding)
        return max(1, min(self.n_batch, int(spare_ms / self.costs.prefill_ms)))


def plan(loads: Sequence[Load], limits: Limits) -> Step:
    """The decoding sequences' next tokens, then prefill chunks, first come first served.

    ``loads`` are in order of arrival.
    """
    decoding = sorted((load for load in loads if load.is_decoding), key=lambda load: load.slot)
    waiting = [load for load in loads if not load.is_decoding]
    groups = _groups(decoding, limits)
    num_paused = len(decoding) - num_rows(groups)
    paused = {load.slot for load in pausing(decoding, num_paused)}
    slots = [load.slot for load in decoding if load.slot not in paused]
    budget = limits.beside(len(slots)) if slots else limits.n_batch
    return Step(
        tuple(_batches(slots, groups)),
        tuple(sorted(_chunks(waiting, budget, limits))),
        tuple(sorted(paused)),
        exchange(decoding, num_paused),
    )


def _groups(decoding: Sequence[Load], limits: Limits) -> tuple[Group, ...]:
    if limits.costs is None:
        return plain(len(decoding))
    shape = quickest if limits.pauses and may_pause(decoding) else cheapest
    return shape(len(decoding), limits.costs)


def _batches(slots: Sequence[int], groups: Sequence[Group]) -> Iterator[Decode]:
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
