"""Handles sequences whose batch was not computed: they wait, are computed anew, or are given up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tasks.contract.messages import ErrorCode, Failure
from tasks.engine.llama.context import CacheFullError
from tasks.engine.observer import Observer
from tasks.engine.residents import Residents
from tasks.engine.sequence import Delta, Sequence
from tasks.engine.step.compute import Batch
from tasks.engine.waiting import Waiting

logger = logging.getLogger(__name__)

#: How often a sequence's batch may fail before its request is given up.
MAX_FAULTS = 2


class Recovery:
    """Makes room when the cache is full, and tries failed batches again."""

    def __init__(
        self,
        residents: Residents,
        waiting: Waiting,
        give_up: Callable[[Sequence, Failure], Delta],
        observer: Observer,
    ) -> None:
        """``give_up`` ends a sequence with an error."""
        self._residents, self._waiting = residents, waiting
        self._give_up, self._observer = give_up, observer

    def recover(self, batch: Batch) -> Iterator[Delta]:
        """A delta for each of the batch's sequences."""
        if isinstance(batch.error, CacheFullError):
            yield from self._put_back_youngest(batch)
            return
        for chunk in batch.chunks:
            yield self._retry(chunk.seq, batch.error)

    def _put_back_youngest(self, batch: Batch) -> Iterator[Delta]:
        """Make room: put the sequence admitted last back into the queue; it is computed anew later."""
        youngest = max(self._residents, key=lambda seq: seq.admitted)
        is_alone = len(self._residents) == 1
        if is_alone and youngest.num_faults >= MAX_FAULTS:
            message = "The KV cache has no room for this request alone; lower --n-ctx or --slots."
            yield self._give_up(youngest, Failure(ErrorCode.INTERNAL, message))
            return
        youngest.num_faults += is_alone
        self._residents.evict(youngest)
        self._waiting.put_back(youngest, len(self._residents))
        self._observer.on_preemption()
        yield from (Delta(chunk.seq.job.key) for chunk in batch.chunks)

    def _retry(self, seq: Sequence, error: Exception | None) -> Delta:
        """Compute a sequence anew, or give it up."""
        seq.num_faults += 1
        logger.error("a batch failed (%s), job %s, fault %d", error, seq.job.key, seq.num_faults)
        if seq.num_faults > MAX_FAULTS:
            return self._give_up(seq, Failure(ErrorCode.INTERNAL, f"The model could not be run: {error}"))
        self._residents.forget(seq)
        return Delta(seq.job.key)
