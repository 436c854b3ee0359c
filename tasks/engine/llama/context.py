"""A context over a model: the KV cache and the batch that is computed on it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.engine.errors import NO_MEMORY, ModelError
from tasks.engine.llama.library import llama_cpp as ll
from tasks.engine.llama.log import recent_errors
from tasks.engine.llama.model import Model


class CacheFullError(Exception):
    """The KV cache has no free cells for the batch; the context is unchanged."""


class DecodeError(Exception):
    """llama.cpp could not compute a batch; part of it may have been applied."""


@dataclass(frozen=True, slots=True)
class Row:
    """One token of a batch at position ``pos`` of sequence ``seq``, with its logits if ``is_output``."""

    token: int
    pos: int
    seq: int
    is_output: bool


class Context:
    """A KV cache of ``slots`` sequences of ``n_ctx`` tokens each, and the batch that is computed on it.

    Each sequence has its own stream (``kv_unified=False``), which decodes faster than a shared one.
    Rows must be in ascending order of sequence ids without gaps, or llama.cpp splits the batch.
    """

    def __init__(self, model: Model, *, slots: int, n_ctx: int, n_batch: int, threads: int) -> None:
        """Make the context.

        Raises:
            ModelError: there is no memory for the cache.
        """
        params = ll.llama_context_default_params()
        params.n_ctx = n_ctx * slots
        params.n_batch = max(n_batch, slots)
        params.n_ubatch = max(n_batch, slots)
        params.n_seq_max = slots
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.no_perf = True
        handle = ll.llama_init_from_model(model.handle, params)
        if handle is None:
            raise ModelError(
                f"{NO_MEMORY} {slots} sequences of {n_ctx} tokens; lower --slots, --n-ctx or --workers"
            )
        self.model = model
        self.handle = handle
        self.slots = slots
        #: Tokens that a sequence can hold; llama.cpp rounds the requested number up.
        self.n_ctx: int = min(n_ctx, ll.llama_n_ctx(handle) // slots)
        #: Most rows of a batch; llama.cpp lowers it to the cells that there are.
        self.n_batch: int = min(params.n_batch, ll.llama_n_batch(handle))
        self._threads = threads
        self._memory = ll.llama_get_memory(handle)
        self._batch = _Batch(params.n_batch)
        self._ends = np.array(model.ends, np.int64)
        self._has_deferred_copy = False

    def decode(self, rows: Sequence[Row]) -> None:
        """Compute a batch.

        Raises:
            CacheFullError: the cache has no free cells for it.
            DecodeError: llama.cpp could not compute it.
        """
        self._batch.fill(rows)
        status = ll.llama_decode(self.handle, self._batch.struct)
        if status == 1:
            raise CacheFullError
        if status != 0:
            raise DecodeError(f"llama_decode returned {status}: {' '.join(recent_errors)}")
        self._has_deferred_copy = False

    def use_threads(self, threads: int) -> None:
        """Compute the next batches with ``threads`` threads."""
        if threads != self._threads:
            ll.llama_set_n_threads(self.handle, threads, threads)
            self._threads = threads

    def greedy(self, num_outputs: int, endless: Sequence[int] = ()) -> list[int]:
        """The likeliest token of each output row of the last batch, in the rows' order.

        In the rows ``endless`` no token that ends a generation is chosen. One sweep over all rows takes a
        tenth of the time that llama.cpp's sampler takes row by row.
        """
        logits = self.logits(num_outputs)
        if endless:
            logits[np.array(endless)[:, None], self._ends] = -np.inf
        return [int(token) for token in logits.argmax(axis=1)]

    def logits(self, num_outputs: int) -> NDArray[np.float32]:
        """Logits of the last batch's output rows, ``(num_outputs, n_vocab)``; valid until the next batch."""
        pointer = ll.llama_get_logits(self.handle)
        return np.ctypeslib.as_array(pointer, shape=(num_outputs, self.model.n_vocab))

    def trim(self, seq: int, start: int) -> bool:
        """Drop a sequence's cells from position ``start`` on.

        ``False``: the sequence can't go on at ``start``, since the model can't cut there, or cells before it
        are missing. Then drop all cells (``start`` 0), which never fails.
        """
        is_cut = bool(ll.llama_memory_seq_rm(self._memory, seq, start, -1))
        return is_cut and (start == 0 or self._can_go_on(seq, start))

    def copy(self, source: int, target: int, size: int) -> bool:
        """Make ``target`` hold the first ``size`` cells of ``source``; ``False`` if ``source`` lacks some.

        A sequence's state holds only the cells that its next token needs, so copying it is quick (500 tokens:
        3 ms). If a window has left behind what ``target`` needs, ``llama_memory_seq_cp`` copies whole
        buffers (12 ms), but only at the next batch. Until then other copies go the same way, in order.
        """
        if not self._can_go_on(source, size):
            return False
        if self._has_deferred_copy or self._state_lacks_cells(source, size):
            ll.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self._has_deferred_copy = True
        elif not self._write_state(target, self._read_state(source)):
            return False
        return self.trim(target, size)

    def _can_go_on(self, seq: int, size: int) -> bool:
        """Whether llama.cpp has all that the token at position ``size`` needs of a sequence's cells."""
        last = ll.llama_memory_seq_pos_max(self._memory, seq)
        if not self.model.rewinds:
            return bool(last == size - 1)
        # Between the first cell and the last one none is missing.
        first = ll.llama_memory_seq_pos_min(self._memory, seq)
        return bool(0 <= first <= self._first_needed(size) and last >= size - 1)

    def _first_needed(self, size: int) -> int:
        """The first position that the token at position ``size`` needs in every layer."""
        return max(0, size - self.model.n_swa) if self.model.n_swa else 0

    def _state_lacks_cells(self, seq: int, size: int) -> bool:
        """Whether a sequence's state has lost cells to a window that the token at ``size`` needs."""
        if not (self.model.n_swa and self.model.rewinds):
            return False
        end = ll.llama_memory_seq_pos_max(self._memory, seq) + 1
        return self._first_needed(end) > self._first_needed(size)

    def _read_state(self, seq: int) -> NDArray[np.uint8]:
        """A sequence's cells and positions as llama.cpp stores them."""
        # Not zeroed: zeroing would take longer than everything else here.
        state = np.empty(ll.llama_state_seq_get_size(self.handle, seq), np.uint8)
        ll.llama_state_seq_get_data(self.handle, _bytes_of(state), state.size, seq)
        return state

    def _write_state(self, seq: int, state: NDArray[np.uint8]) -> bool:
        """Replace a sequence's cells; ``False`` if that is impossible."""
        return bool(ll.llama_state_seq_set_data(self.handle, _bytes_of(state), state.size, seq) == state.size)

    def close(self) -> None:
        """Free the context; it can't be used any more."""
        if self.handle is not None:
            ll.llama_free(self.handle)
            self.handle = None


def _bytes_of(state: NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class _Batch:
    """A llama_batch over NumPy arrays, so that a few slice assignments fill it."""

    def __init__(self, size: int) -> None:
        self._tokens: NDArray[np.int32] = np.zeros(size, np.int32)
        self._pos: NDArray[np.int32] = np.zeros(size, np.int32)
        self._num_seqs: NDArray[np.int32] = np.ones(size, np.int32)
        self._seqs: NDArray[np.int32] = np.zeros(size, np.int32)
        self._outputs: NDArray[np.int8] = np.zeros(size, np.int8)
        pointer = ctypes.POINTER(ll.llama_seq_id)
        start, step = self._seqs.ctypes.data, self._seqs.itemsize
        self._seq_pointers = (pointer * size)(
            *(ctypes.cast(start + i * step, pointer) for i in range(size)),
        )
        self.struct = ll.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(ctypes.POINTER(ll.llama_token)),
            embd=None,
            pos=self._pos.ctypes.data_as(ctypes.POINTER(ll.llama_pos)),
            n_seq_id=self._num_seqs.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._seq_pointers,
            logits=self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, rows: Sequence[Row]) -> None:
        count = len(rows)
        self._tokens[:count] = [row.token for row in rows]
        self._pos[:count] = [row.pos for row in rows]
        self._seqs[:count] = [row.seq for row in rows]
        self._outputs[:count] = [row.is_output for row in rows]
        self.struct.n_tokens = count
