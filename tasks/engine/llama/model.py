"""A model, a context over it, and samplers, by llama.cpp.

A :class:`Model` may be loaded in a parent and shared with forked children; a :class:`Context` belongs to
the one thread that made it. Loading runs no parallel region of several threads (see
:mod:`tasks.engine.llama.library`), so OpenMP works in children forked after it.
"""

from __future__ import annotations

import ctypes
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.contract.messages import Sampling
from tasks.engine.errors import NO_MEMORY, ModelError
from tasks.engine.kernels.choice import KernelSet
from tasks.engine.llama.library import llama_cpp as ll
from tasks.engine.llama.library import load_best, load_kernels

logger = logging.getLogger(__name__)

#: Tokens looked back on by the repetition penalties (llama.cpp's ``penalty_last_n``).
PENALTY_LAST_N = 64
_GGML_LOG_LEVEL_WARN, _GGML_LOG_LEVEL_ERROR = 3, 4
_recent_errors: deque[str] = deque(maxlen=8)


class CacheFullError(Exception):
    """No cell of the KV cache is free for the batch; the context is unchanged."""


class DecodeError(Exception):
    """llama.cpp could not compute a batch; part of it may have been applied."""


@ll.llama_log_callback
def _on_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    message = text.decode(errors="replace").rstrip()
    if level == _GGML_LOG_LEVEL_ERROR:
        _recent_errors.append(message)
    if level in (_GGML_LOG_LEVEL_WARN, _GGML_LOG_LEVEL_ERROR):
        logger.debug("llama.cpp: %s", message)


@dataclass(frozen=True, slots=True)
class Row:
    """One token of a batch at position ``pos`` of sequence ``seq``, with its logits if ``is_output``."""

    token: int
    pos: int
    seq: int
    is_output: bool


class Model:
    """Weights and vocabulary. Immutable, so any thread or forked child may use it."""

    def __init__(
        self,
        path: Path,
        gpu_layers: int = 0,
        kernels: KernelSet | None = None,
        *,
        vocab_only: bool = False,
    ) -> None:
        """Load ``path``, to compute with ``kernels``; default: the best for this processor, unproved.

        A process computes with the kernels of its first model. Raises
        :class:`~tasks.engine.errors.ModelError` when the file is missing, truncated or no GGUF file.
        """
        _check_file(path)
        ll.llama_log_set(_on_log, ctypes.c_void_p(0))
        if kernels is not None:
            load_kernels(kernels.variant, with_gpu=gpu_layers != 0)
        elif not vocab_only:
            load_best()
        ll.llama_backend_init()
        _recent_errors.clear()
        params = ll.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = vocab_only
        params.use_extra_bufts = kernels is None or kernels.repacks
        handle = ll.llama_model_load_from_file(str(path).encode(), params)
        if handle is None:
            raise ModelError(_load_failure(path))
        self.path = path
        self.kernels = kernels
        self.handle = handle
        self.vocab = ll.llama_model_get_vocab(handle)
        self.n_vocab: int = ll.llama_vocab_n_tokens(self.vocab)
        self._pieces: dict[int, bytes] = {}

    @property
    def n_ctx_train(self) -> int:
        """Context that the model was trained for, in tokens."""
        return int(ll.llama_model_n_ctx_train(self.handle))

    @property
    def chat_template(self) -> str | None:
        """The model's own Jinja chat template, if it carries one."""
        raw = ll.llama_model_chat_template(self.handle, None)
        return None if raw is None else raw.decode()

    def make_chat_formatter(self) -> Callable[..., Any] | None:
        """llama-cpp-python's sandboxed Jinja formatter over the model's template, or ``None`` without one."""
        template = self.chat_template
        if template is None:
            return None
        # Not at the top, where it would come before the library's own import, which settles OpenMP.
        from llama_cpp import llama_chat_format as chat_format

        bos, eos = (self._special(token) for token in (self.bos, self.eos))
        formatter: Callable[..., Any] = chat_format.Jinja2ChatFormatter(
            template, eos_token=eos, bos_token=bos
        )
        return formatter

    def _special(self, token: int) -> str:
        return self._read_piece(token, special=True).decode(errors="replace") if token >= 0 else ""

    @property
    def bos(self) -> int:
        """The beginning-of-sequence token's id, or -1."""
        return int(ll.llama_vocab_bos(self.vocab))

    @property
    def eos(self) -> int:
        """The end-of-sequence token's id, or -1."""
        return int(ll.llama_vocab_eos(self.vocab))

    @property
    def adds_bos(self) -> bool:
        """Whether a plain prompt begins with the beginning-of-sequence token."""
        return bool(ll.llama_vocab_get_add_bos(self.vocab))

    def meta(self, key: str) -> str | None:
        """A value of the file's metadata, as text."""
        buffer = ctypes.create_string_buffer(256)
        size = ll.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return None if size < 0 else buffer.value.decode(errors="replace")

    def is_eog(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""
        return bool(ll.llama_vocab_is_eog(self.vocab, token))

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of ``text``; special tokens written in it count as such."""
        raw = text.encode()
        room = len(raw) + 8  # a token is at least one byte, and a few are added around
        buffer = (ll.llama_token * room)()
        count = ll.llama_tokenize(self.vocab, raw, len(raw), buffer, room, add_special, True)
        if count < 0:
            raise ValueError("the text could not be tokenized")
        return list(buffer[:count])

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; may end inside a UTF-8 character. Special tokens have none."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._read_piece(token, special=False)
        return found

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = ll.llama_token_to_piece(self.vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def describe(self) -> dict[str, Any]:
        """What ``python -m tasks.engine.llama.inspect`` prints; sizes in bytes."""
        return {
            "name": self.path.name.removesuffix(".gguf"),
            "architecture": self.meta("general.architecture"),
            "n_ctx_train": self._dimension("context_length"),
            "size_bytes": self.path.stat().st_size,
            "kv_bytes_per_token": self._kv_bytes_per_token(),
            "n_vocab": self.n_vocab,
            "n_embd": self._dimension("embedding_length"),
            "n_ff": self._dimension("feed_forward_length"),
        }

    def _kv_bytes_per_token(self) -> int:
        """Keys and values in half precision, for each layer and KV head; from the metadata alone."""
        heads = self._dimension("attention.head_count")
        heads_kv = self._dimension("attention.head_count_kv") or heads
        head = self._dimension("attention.key_length") or self._dimension("embedding_length") // max(1, heads)
        return 2 * 2 * self._dimension("block_count") * heads_kv * head

    def _dimension(self, key: str) -> int:
        value = self.meta(f"{self.meta('general.architecture')}.{key}") or "0"
        return int(value) if value.isdecimal() else 0


def describe_build() -> dict[str, Any]:
    """What ``python -m tasks.engine.llama.about`` prints."""
    ll.llama_log_set(_on_log, ctypes.c_void_p(0))
    load_best()
    told = ll.llama_print_system_info().decode()
    features = [name.split(":")[-1].strip() for name, _, value in _pairs(told) if value.strip() == "1"]
    return {
        "version": ll.__version__,
        "features": features,
        "has_gpu": bool(ll.llama_supports_gpu_offload()),
    }


def _pairs(told: str) -> Iterable[tuple[str, str, str]]:
    return (part.partition("=") for part in told.split("|"))


class Context:
    """A KV cache of ``slots`` sequences of ``n_ctx`` tokens each, and the batch that is computed on it.

    Each sequence has a stream of its own (``kv_unified=False``), which decodes faster than a shared one.
    Rows must come in ascending order of consecutive sequence ids, or llama.cpp splits the batch up.
    """

    def __init__(self, model: Model, *, slots: int, n_ctx: int, n_batch: int, threads: int) -> None:
        """Raises :class:`ModelError` when the memory for the cache can't be had."""
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
        #: Tokens a sequence can hold; llama.cpp rounds up what was asked for.
        self.n_ctx: int = min(n_ctx, ll.llama_n_ctx(handle) // slots)
        self.n_batch: int = params.n_batch
        self._threads = threads
        self._memory = ll.llama_get_memory(handle)
        self._batch = _Batch(params.n_batch)

    def decode(self, rows: Sequence[Row]) -> None:
        """Compute a batch. Raises :class:`CacheFullError` or :class:`DecodeError`."""
        self._batch.fill(rows)
        status = ll.llama_decode(self.handle, self._batch.struct)
        if status == 1:
            raise CacheFullError
        if status != 0:
            raise DecodeError(f"llama_decode returned {status}: {' '.join(_recent_errors)}")

    def use_threads(self, threads: int) -> None:
        """Compute the next batches with so many threads."""
        if threads != self._threads:
            ll.llama_set_n_threads(self.handle, threads, threads)
            self._threads = threads

    def greedy(self, num_outputs: int) -> list[int]:
        """The likeliest token of each output row of the last batch, in the rows' order.

        One sweep over all rows takes a tenth of the time of llama.cpp's sampler for each.
        """
        return [int(token) for token in self.logits(num_outputs).argmax(axis=1)]

    def logits(self, num_outputs: int) -> NDArray[np.float32]:
        """Logits of the last batch's output rows, ``(num_outputs, n_vocab)``; valid until the next batch."""
        pointer = ll.llama_get_logits(self.handle)
        return np.ctypeslib.as_array(pointer, shape=(num_outputs, self.model.n_vocab))

    def trim(self, seq: int, start: int) -> bool:
        """Drop a sequence's cells from position ``start`` on; ``False`` if the model can't cut there."""
        return bool(ll.llama_memory_seq_rm(self._memory, seq, start, -1))

    def copy(self, source: int, target: int, size: int) -> bool:
        """Make ``target`` hold the first ``size`` cells of ``source``; ``False`` if that can't be had.

        By way of the sequence's state, which holds only the cells in use (500 tokens: 3 ms). Between streams
        ``llama_memory_seq_cp`` copies a whole stream's buffers, however little of them is used (12 ms).
        """
        return self._write_state(target, self._read_state(source)) and self.trim(target, size)

    def exchange(self, a: int, b: int) -> bool:
        """Let two sequences change places (500 tokens each: 7 ms); ``False`` if that can't be had.

        Then what the two slots hold is undefined.
        """
        states = self._read_state(a), self._read_state(b)
        # An empty state, written, would leave what is there.
        self.trim(a, 0)
        self.trim(b, 0)
        return self._write_state(b, states[0]) and self._write_state(a, states[1])

    def _read_state(self, seq: int) -> NDArray[np.uint8]:
        """A sequence's cells and positions as llama.cpp stores them."""
        # Not zeroed, since that takes longer than all the rest.
        state = np.empty(ll.llama_state_seq_get_size(self.handle, seq), np.uint8)
        ll.llama_state_seq_get_data(self.handle, _bytes_of(state), state.size, seq)
        return state

    def _write_state(self, seq: int, state: NDArray[np.uint8]) -> bool:
        """Replace a sequence's cells; ``False`` if they can't be had."""
        return bool(ll.llama_state_seq_set_data(self.handle, _bytes_of(state), state.size, seq) == state.size)

    def close(self) -> None:
        """Free the context; it can't be used any more."""
        if self.handle is not None:
            ll.llama_free(self.handle)
            self.handle = None


class Sampler:
    """A chain of llama.cpp's samplers for one request, in llama-server's order.

    Greedy requests without penalties need none: :attr:`is_plain_greedy` says so.
    """

    def __init__(self, model: Model, sampling: Sampling) -> None:
        self.is_plain_greedy = sampling.temperature <= 0 and not _has_penalties(sampling)
        self._chain = None if self.is_plain_greedy else _chain(model, sampling)

    def accept(self, tokens: Iterable[int]) -> None:
        """Let the penalties know of tokens generated elsewhere."""
        if self._chain is not None:
            for token in tokens:
                ll.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context, row: int) -> int:
        """Choose a token from the logits of batch row ``row``."""
        return int(ll.llama_sampler_sample(self._chain, context.handle, row))

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            ll.llama_sampler_free(self._chain)
            self._chain = None


def _bytes_of(state: NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def quantize(source: Path, target: Path, encoding: str, threads: int) -> None:
    """Re-encode a GGUF file. Raises :class:`ModelError` when the encoding is unknown or it fails."""
    ftype = getattr(ll, f"LLAMA_FTYPE_MOSTLY_{encoding.upper()}", None)
    if ftype is None:
        raise ModelError(f"unknown encoding {encoding!r}; known: {', '.join(encodings())}")
    ll.llama_log_set(_on_log, ctypes.c_void_p(0))
    ll.llama_backend_init()
    params = ll.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = threads, ftype, True
    if ll.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) != 0:
        raise ModelError(f"could not re-encode {source} as {encoding}: {' '.join(_recent_errors)}")


def encodings() -> list[str]:
    """Names of the encodings that :func:`quantize` knows."""
    prefix = "LLAMA_FTYPE_MOSTLY_"
    return sorted(name.removeprefix(prefix) for name in dir(ll) if name.startswith(prefix))


class _Batch:
    """llama_batch over arrays of ours, so that filling it is a few slice assignments."""

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


def _has_penalties(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repeat_penalty != 1.0)


def _chain(model: Model, sampling: Sampling) -> Any:
    chain = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
    for stage in _stages(model, sampling):
        ll.llama_sampler_chain_add(chain, stage)
    return chain


def _stages(model: Model, sampling: Sampling) -> Iterable[Any]:
    if _has_penalties(sampling):
        yield ll.llama_sampler_init_penalties(
            model.n_vocab,
            PENALTY_LAST_N,
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
    if sampling.temperature <= 0:
        yield ll.llama_sampler_init_greedy()
        return
    yield ll.llama_sampler_init_top_k(sampling.top_k)
    yield ll.llama_sampler_init_top_p(sampling.top_p, 1)
    yield ll.llama_sampler_init_min_p(sampling.min_p, 1)
    yield ll.llama_sampler_init_temp(sampling.temperature)
    seed = random.getrandbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
    yield ll.llama_sampler_init_dist(seed)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; `inference-server model fetch` gets the default model")
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error.strerror}); see to its permissions") from error
    if begins != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file; convert the model to GGUF or choose another with --model")


def _load_failure(path: Path) -> str:
    detail = next((line for line in _recent_errors if "not within the file bounds" in line), None)
    if detail is not None:
        return f"{path}: truncated; fetch or copy it again"
    return f"{path}: llama.cpp can't load it ({'; '.join(list(_recent_errors)[-2:]) or 'no reason given'})"
