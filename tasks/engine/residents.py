"""The sequences that hold slots, and the cells they start from."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Sequence_

from tasks.engine.llama.context import Context, Row
from tasks.engine.llama.sampler import Sampler
from tasks.engine.sequence import Sequence
from tasks.engine.slots import MIN_SHARED, SlotTable


class Residents:
    """Puts sequences into slots, copies shared prefixes between slots, and takes sequences out again."""

    def __init__(self, context: Context, *, reuses: bool) -> None:
        self._context = context
        self._table = SlotTable(context.slots, reuses=reuses, rewinds=context.model.rewinds)
        self._by_slot: dict[int, Sequence] = {}
        self._samplers: dict[int, Sampler] = {}

    def __iter__(self) -> Iterator[Sequence]:
        """The sequences, in the order in which they got their slots."""
        return iter(list(self._by_slot.values()))

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return self._table.num_free > 0

    def get(self, slot: int) -> Sequence | None:
        """The sequence in a slot, if any."""
        return self._by_slot.get(slot)

    def sampler(self, seq: Sequence) -> Sampler:
        """The sampler of a sequence that holds a slot."""
        return self._samplers[seq.slot]

    def add(self, seq: Sequence) -> None:
        """Give a sequence a slot, and the cells of its first tokens if a slot has or will have them."""
        place = self._table.take(seq.tokens, seq.job.owner)
        seq.slot = place.slot
        seq.computed = self._trim(seq, place.kept)
        seq.waits_for = None if place.source is None else (place.source, place.shared)
        seq.cache_n = seq.computed
        self._samplers[seq.slot] = Sampler(
            self._context.model,
            seq.job.sampling,
            ignore_eos=seq.job.ignore_eos,
            prompt=seq.job.prompt,
            answer=seq.tokens[len(seq.job.prompt) :],
        )
        self._by_slot[seq.slot] = seq

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out; its cells stay for other sequences."""
        del self._by_slot[seq.slot]
        self._samplers.pop(seq.slot).close()
        self._table.release(seq.slot, seq.tokens[: seq.computed])

    def share(self) -> None:
        """Copy prefixes that are computed by now to the sequences that wait for them."""
        for seq in self._by_slot.values():
            if seq.waits_for is not None:
                self._try_copy(seq, *seq.waits_for)

    def padding(self, slots: Sequence_[int], count: int) -> list[Row]:
        """Up to ``count`` rows of padding for a batch of ``slots``, in the idle slots that follow them.

        A row's position is after the cells that its slot keeps. :meth:`unpad` drops the row's cell again.
        """
        rows = []
        for slot in range(slots[-1] + 1, min(slots[-1] + 1 + count, self._context.slots)):
            pos = self._table.size(slot)
            # A padded slot keeps its cells only if the padding's own can be dropped again.
            is_kept = self._context.model.rewinds or pos == 0
            if slot in self._by_slot or pos >= self._context.n_ctx or not is_kept:
                break
            rows.append(Row(0, pos, slot, is_output=True))
        return rows

    def unpad(self, rows: Sequence_[Row]) -> None:
        """Drop the cells of padding; if others are missing then, drop all cells of their slots."""
        for row in rows:
            if not self._context.trim(row.seq, row.pos):
                self._context.trim(row.seq, 0)
                self._table.empty(row.seq)

    def evict(self, seq: Sequence) -> None:
        """Take a sequence out, and drop its cells and every idle slot's cells, to make room."""
        self.remove(seq)
        for slot in range(self._context.slots):
            if slot not in self._by_slot:
                self._context.trim(slot, 0)
                self._table.empty(slot)

    def forget(self, seq: Sequence) -> None:
        """Drop a sequence's cells, so that it is computed anew."""
        seq.computed, seq.waits_for = self._trim(seq, 0), None

    def _try_copy(self, seq: Sequence, source: int, shared: int) -> None:
        owner = self._by_slot.get(source)
        shared = min(shared, self._table.has(source, seq.tokens, seq.job.owner))
        if shared - seq.computed < MIN_SHARED:
            seq.waits_for = None  # the sequence that was computing them is gone
        elif owner is None or owner.computed >= shared:
            is_copied = self._context.copy(source, seq.slot, shared)
            seq.computed = seq.cache_n = shared if is_copied else self._trim(seq, seq.computed)
            seq.waits_for = None

    def _trim(self, seq: Sequence, kept: int) -> int:
        """Keep the first ``kept`` cells, or none if some of them are missing; returns the number kept."""
        if self._context.trim(seq.slot, kept):
            return kept
        self._context.trim(seq.slot, 0)
        return 0
