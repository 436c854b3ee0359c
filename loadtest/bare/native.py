"""Uses llama.cpp of a given folder by its C API; only in a process that ``Build.ask`` started.

``tasks.engine`` doesn't have these options and can't use other libraries; other commands measure it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from loadtest.bare.build import BuildError, Variation

FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


def load_kernels(folder: Path, variant: str | None) -> None:
    """Register the processor's kernels if they are separate libraries: the best ones, or ``variant``.

    Call it before ``llama_cpp`` computes. Raises :class:`BuildError` when the variant can't be used.
    """
    is_dynamic = any(folder.glob("libggml-cpu-*.so"))
    if variant and not is_dynamic:
        raise BuildError(f"{folder} has no variants of kernels; leave {variant!r} out")
    if not is_dynamic:
        return
    library = ctypes.CDLL(str(folder / "libllama.so"))  # it finds its dependencies' symbols, too
    if variant is None:
        library.ggml_backend_load_all_from_path(str(folder).encode())
        return
    library.ggml_backend_load.restype = ctypes.c_void_p
    if not library.ggml_backend_load(str(folder / f"libggml-cpu-{variant}.so").encode()):
        raise BuildError(
            f"libggml-cpu-{variant}.so of {folder} can't be used on this processor, or isn't there"
        )


def loaded_kernels() -> str:
    """The file that has the processor's kernels in this process."""
    mapped = {Path(region.path).name for region in psutil.Process().memory_maps()}
    return ", ".join(sorted(name for name in mapped if name.startswith("libggml-cpu")))


class Loop:
    """A model and one context of ``slots`` sequences of ``n_ctx`` tokens; a batch has ``n_batch`` at most."""

    def __init__(self, path: Path, variation: Variation, *, slots: int, n_ctx: int, threads: int) -> None:
        """Raises :class:`BuildError` when the model or the context can't be loaded."""
        import llama_cpp as ll  # the environment says which libraries it loads

        self._ll = ll
        self.logged: list[str] = []
        self._on_log = ll.llama_log_callback(lambda _level, text, _data: self.logged.append(text.decode()))
        ll.llama_log_set(self._on_log, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.n_batch = 512
        self.model = self._load(path, variation)
        self.vocab = ll.llama_model_get_vocab(self.model)
        self.n_vocab = int(ll.llama_vocab_n_tokens(self.vocab))
        self._context = self._open(variation, slots, n_ctx, threads)
        self._batch = ll.llama_batch_init(self.n_batch, 0, 1)

    def _load(self, path: Path, variation: Variation) -> Any:
        params = self._ll.llama_model_default_params()
        params.n_gpu_layers = 0
        if variation.repack is not None:
            params.use_extra_bufts = variation.repack
        return self._there(self._ll.llama_model_load_from_file(str(path).encode(), params))

    def _open(self, variation: Variation, slots: int, n_ctx: int, threads: int) -> Any:
        params = self._ll.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = n_ctx * slots, slots, False
        params.n_batch = params.n_ubatch = self.n_batch
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        if variation.flash_attention is not None:
            params.flash_attn_type = FLASH_ATTENTION[variation.flash_attention]
        if variation.cache_type is not None:
            params.type_k = params.type_v = self._type(variation.cache_type)
        return self._there(self._ll.llama_init_from_model(self.model, params))

    def _type(self, name: str) -> int:
        found = getattr(self._ll, f"GGML_TYPE_{name.upper()}", None)
        if found is None:
            raise BuildError(f"kv={name}: llama.cpp has no such type; try f16, q8_0 or q4_0")
        return int(found)

    def _there(self, handle: Any) -> Any:
        if handle is None:
            raise BuildError("".join(self.logged[-3:]).strip() or "llama.cpp could not load it")
        return handle

    def fill(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Set the next batch; a row is a token, its position, its sequence, and whether it needs logits."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, pos, seq, is_output) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, pos
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, seq, is_output

    def decode(self) -> None:
        """Compute the batch. Raises :class:`BuildError` when llama.cpp can't."""
        if status := self._ll.llama_decode(self._context, self._batch):
            raise BuildError(f"llama_decode returned {status}")

    def logits(self) -> NDArray[np.float32]:
        """Logits of the last batch's first output row; valid until the next batch."""
        pointer = self._ll.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))

    def clear(self) -> None:
        """Forget every sequence."""
        self._ll.llama_memory_clear(self._ll.llama_get_memory(self._context), True)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the tokens that the model puts before it."""
        raw = text.encode()
        buffer = (self._ll.llama_token * (len(raw) + 8))()
        count = self._ll.llama_tokenize(self.vocab, raw, len(raw), buffer, len(buffer), True, True)
        return list(buffer[:count])

    def piece(self, token: int) -> str:
        """The text of a token."""
        buffer = ctypes.create_string_buffer(128)
        count = self._ll.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[: max(0, count)].decode(errors="replace")

    def ends(self, token: int) -> bool:
        """Whether a text ends with this token."""
        return bool(self._ll.llama_vocab_is_eog(self.vocab, token))

    def describe(self) -> dict[str, str]:
        """The kernels that compute: their file, their features, and the buffers that hold the weights."""
        told = self._ll.llama_print_system_info().decode()
        return {
            "file": loaded_kernels(),
            "features": features_on(told),
            "buffers": weight_buffers(self.logged),
        }


def features_on(told: str) -> str:
    """The features that are 1 in llama.cpp's text, such as ``AVX2 = 1 | AMX_INT8 = 0``."""
    pairs = (part.rpartition(":")[2].partition("=") for part in told.split("|"))
    return ", ".join(name.strip() for name, _, value in pairs if value.strip() == "1")


def weight_buffers(lines: Sequence[str]) -> str:
    """The buffers that hold the weights, from llama.cpp's log, such as ``CPU_Mapped, AMX``."""
    said = (line.partition("model buffer size")[0] for line in lines if "model buffer size" in line)
    return ", ".join(dict.fromkeys(part.split()[-1] for part in said if part.split()))
