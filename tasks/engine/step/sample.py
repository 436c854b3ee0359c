"""Chooses tokens from a batch's logits, and checks whether a sequence ends with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tasks.contract.messages import Failure, FinishReason
from tasks.engine.llama.context import Context
from tasks.engine.llama.sampler import Sampler
from tasks.engine.observer import Observer
from tasks.engine.residents import Residents
from tasks.engine.sequence import Delta
from tasks.engine.sequence import Sequence as Sequence_
from tasks.engine.step.compute import Batch, Chunk


class TokenSampler:
    """Gives each sequence of a computed batch its next tokens."""

    def __init__(
        self, context: Context, residents: Residents, observer: Observer, clock: Callable[[], float]
    ) -> None:
        self._context, self._residents = context, residents
        self._observer, self._clock = observer, clock

    def sample(self, batch: Batch) -> Iterator[Delta]:
        """A delta for each of the batch's sequences; an empty one if its prompt isn't fully computed."""
        chosen = self._choose(batch)
        now = self._clock()
        for chunk, tokens in zip(batch.chunks, chosen, strict=True):
            yield self._advance(chunk.seq, tokens, now)

    def end(
        self,
        seq: Sequence_,
        reason: FinishReason | None = None,
        text: str = "",
        tokens: tuple[int, ...] = (),
        error: Failure | None = None,
    ) -> Delta:
        """Take a sequence out of its slot; returns its last delta."""
        ending = seq.ending(reason, error)
        self._residents.remove(seq)
        self._observer.on_end(ending)
        return Delta(seq.job.key, text, tokens, ending)

    def end_without_slot(self, seq: Sequence_, error: Failure) -> Delta:
        """The last delta of a sequence that waits for a slot."""
        ending = seq.ending(error=error)
        self._observer.on_end(ending)
        return Delta(seq.job.key, ending=ending)

    def _choose(self, batch: Batch) -> list[list[int]]:
        """Each chunk's next tokens: greedy requests in one sweep over all rows, others by their samplers."""
        samplers = [self._residents.sampler(chunk.seq) for chunk in batch.chunks]
        is_swept = any(sampler.is_plain_greedy for sampler in samplers)
        greedy = self._swept(batch, samplers) if is_swept else []
        chosen, start = [], 0
        for chunk, sampler, (row, count) in zip(batch.chunks, samplers, batch.outputs, strict=True):
            if count and not sampler.is_plain_greedy:
                chosen.append([sampler.sample(self._context, row)])
            else:
                chosen.append(self._checked(chunk, [greedy[i] for i in range(start, start + count)]))
            start += count
        return chosen

    def _swept(self, batch: Batch, samplers: Sequence[Sampler]) -> list[int]:
        """The likeliest token of each output row; the rows of others than greedy requests don't matter."""
        num_outputs, endless = 0, list[int]()
        for chunk, sampler, (_, count) in zip(batch.chunks, samplers, batch.outputs, strict=True):
            if chunk.seq.job.ignore_eos and sampler.is_plain_greedy:
                endless += range(num_outputs, num_outputs + count)
            num_outputs += count
        return self._context.greedy(num_outputs, endless) if num_outputs else []

    def _checked(self, chunk: Chunk, tokens: list[int]) -> list[int]:
        """Tokens up to and with the first one that the draft got wrong; drops the wrong guesses' cells."""
        if not chunk.draft:
            return tokens
        seq, draft = chunk.seq, chunk.draft
        right = next((i for i, guess in enumerate(draft) if tokens[i] != guess), len(draft))
        seq.computed += right
        if not self._context.trim(seq.slot, seq.computed):
            self._residents.forget(seq)
        self._observer.on_draft(len(draft), right)
        return tokens[: right + 1]

    def _advance(self, seq: Sequence_, tokens: Sequence[int], now: float) -> Delta:
        """One delta with these tokens, up to the first one that ends the sequence."""
        text, taken = "", []
        for token in tokens:
            more, reason = self._take(seq, token, now)
            text += more
            taken.append(token)
            if reason is not None:
                return self.end(seq, reason, text, tuple(taken))
        return Delta(seq.job.key, text, tuple(taken))

    def _take(self, seq: Sequence_, token: int, now: float) -> tuple[str, FinishReason | None]:
        """Add a token; returns its text, and the finish reason if it is the last token."""
        model = self._context.model
        seq.add(token, now)
        if model.is_eog(token) and not seq.job.ignore_eos:
            return seq.assembler.finish(), FinishReason.STOP
        text = seq.assembler.feed(model.piece(token))
        if seq.assembler.is_stopped:
            return text, FinishReason.STOP
        if seq.num_generated >= seq.job.max_tokens or len(seq.tokens) > self._context.n_ctx:
            return text + seq.assembler.finish(), FinishReason.LENGTH
        return text, None
