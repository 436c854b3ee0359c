"""Computes a step's batches on the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.engine.llama.context import CacheFullError, Context, DecodeError, Row
from tasks.engine.residents import Residents
from tasks.engine.sequence import Sequence as Sequence_
from tasks.engine.step.scheduler import Step


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sequence's part of a batch: its next ``size`` tokens without cells, then the ``draft``."""

    seq: Sequence_
    size: int
    draft: tuple[int, ...] = ()

    def rows(self) -> Iterator[Row]:
        """The chunk's rows; the rows of the sequence's newest token and of the draft get logits."""
        seq, start = self.seq, self.seq.computed
        last = len(seq.tokens) - 1
        for pos in range(start, start + self.size):
            yield Row(seq.tokens[pos], pos, seq.slot, pos == last)
        for pos, token in enumerate(self.draft, start=start + self.size):
            yield Row(token, pos, seq.slot, is_output=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was computed, or the reason why it was not.

    Attributes:
        chunks: what was to be computed.
        outputs: for each chunk, the index in the batch of its first row with logits, and how many have them.
        error: why nothing was computed.
    """

    chunks: tuple[Chunk, ...]
    outputs: tuple[tuple[int, int], ...] = ()
    error: CacheFullError | DecodeError | None = None


class Computer:
    """Turns a step into batches on one context."""

    def __init__(self, context: Context, residents: Residents) -> None:
        self._context, self._residents = context, residents

    def compute(self, step: Step) -> Iterator[Batch]:
        """Compute the step's batches, each one when the caller asks for it.

        A context has the logits of its last batch only, so sample each batch before asking for the next one.
        """
        decode = [Chunk(seq, 1, step.draft) for slot in step.decode if (seq := self._residents.get(slot))]
        if decode:
            yield self._run(decode, self._residents.padding(step.decode, step.padding))
        # Some sequences may have been removed meanwhile, to make room.
        prefill = [Chunk(seq, size) for slot, size in step.prefill if (seq := self._residents.get(slot))]
        if prefill:
            yield self._run(prefill)

    def _run(self, chunks: Sequence[Chunk], padding: Sequence[Row] = ()) -> Batch:
        parts = [list(chunk.rows()) for chunk in chunks]
        try:
            self._context.decode([*(row for part in parts for row in part), *padding])
        except CacheFullError as error:
            return Batch(tuple(chunks), error=error)
        except DecodeError as error:
            self._residents.unpad(padding)
            return Batch(tuple(chunks), error=error)
        self._residents.unpad(padding)
        for chunk in chunks:
            chunk.seq.computed += chunk.size
        return Batch(tuple(chunks), tuple(_outputs(parts)))


def _outputs(parts: Sequence[Sequence[Row]]) -> Iterator[tuple[int, int]]:
    start = 0
    for part in parts:
        count = sum(row.is_output for row in part)
        yield start + len(part) - count, count
        start += len(part)
