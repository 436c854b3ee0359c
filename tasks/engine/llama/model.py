"""A model's weights and vocabulary.

A :class:`Model` may be loaded in a parent and shared with forked children. Loading runs no parallel region of
several threads (see :mod:`tasks.engine.llama.library`), so OpenMP works in children forked after it.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.contract.model_parts import model_bytes, model_parts
from tasks.engine.errors import ModelError
from tasks.engine.llama.fingerprint import file_digest
from tasks.engine.llama.kernel_sets import KernelSet
from tasks.engine.llama.library import llama_cpp as ll
from tasks.engine.llama.library import load_best, load_kernels
from tasks.engine.llama.log import listen, recent_errors
from tasks.engine.llama.vocabulary.special_tokens import SpecialToken, longest_token, special_tokens


class Model:
    """Weights and vocabulary; immutable, so any thread or forked child may use them."""

    def __init__(
        self,
        path: Path,
        gpu_layers: int = 0,
        kernels: KernelSet | None = None,
        *,
        vocab_only: bool = False,
    ) -> None:
        """Load ``path``, to compute with ``kernels``; default: the best for this processor, unproved.

        A process computes with the kernels of its first model.

        Raises:
            ModelError: the file is missing, truncated or not a GGUF file.
        """
        _check_file(path)
        listen()
        if kernels is not None:
            load_kernels(kernels.variant, with_gpu=gpu_layers != 0)
        elif not vocab_only:
            load_best()
        ll.llama_backend_init()
        recent_errors.clear()
        params = ll.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = vocab_only
        params.use_extra_bufts = kernels is None or kernels.repacks
        handle = ll.llama_model_load_from_file(str(path).encode(), params)
        if handle is None:
            raise ModelError(_load_failure(path))
        self.path = path
        #: Of the file that was loaded; another one may take its place.
        self.file_digest = file_digest(path)
        self.kernels = kernels
        self.handle = handle
        self.vocab = ll.llama_model_get_vocab(handle)
        self.n_vocab: int = ll.llama_vocab_n_tokens(self.vocab)
        #: Tokens that a layer with a sliding window looks back; 0 if every layer sees all tokens.
        self.n_swa: int = max(0, ll.llama_model_n_swa(handle))
        #: Whether a sequence's last tokens can be dropped. A recurrent or hybrid model has only the state
        #: after all of them.
        self.rewinds = not (ll.llama_model_is_recurrent(handle) or ll.llama_model_is_hybrid(handle))
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

    def spelling(self, token: int) -> str:
        """How a special token is written; empty for -1."""
        return self._read_piece(token, special=True).decode(errors="replace") if token >= 0 else ""

    @property
    def bos(self) -> int:
        """The beginning-of-sequence token's id, or -1."""
        return int(ll.llama_vocab_bos(self.vocab))

    @property
    def eos(self) -> int:
        """The end-of-sequence token's id, or -1."""
        return int(ll.llama_vocab_eos(self.vocab))

    def read_vocabulary(self) -> None:
        """Read the vocabulary now, for all children, and not in each of them."""
        _ = self.special_tokens, self.longest_token

    @cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """The special tokens, the longest spelling first."""
        return special_tokens(self.vocab)

    @cached_property
    def longest_token(self) -> int | None:
        """Bytes of text that one token stands for at most; ``None``: any number."""
        return longest_token(self.vocab)

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The tokens that the model wants before and after a plain prompt."""
        if not ll.llama_vocab_get_add_bos(self.vocab):
            return [], []
        tokens = self.tokenize("", add_special=True)
        return tokens[:1], tokens[1:]

    def meta(self, key: str) -> str | None:
        """A value of the file's metadata, as text."""
        buffer = ctypes.create_string_buffer(256)
        size = ll.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return None if size < 0 else buffer.value.decode(errors="replace")

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a generation; found by asking for the whole vocabulary (once, 10 to 100 ms)."""
        return tuple(token for token in range(self.n_vocab) if ll.llama_vocab_is_eog(self.vocab, token))

    def is_eog(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""
        return token in self.ends

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of ``text``; with ``parse_special`` a control token in the text becomes that token.

        llama.cpp's time grows with the square of the special tokens; :mod:`tasks.engine.tokens` avoids that.
        """
        raw = text.encode()
        room = len(raw) + 8  # a token is at least one byte, and a few special tokens are added
        buffer = (ll.llama_token * room)()
        count = ll.llama_tokenize(self.vocab, raw, len(raw), buffer, room, add_special, parse_special)
        if count < 0:
            raise ValueError("the text could not be tokenized")
        return list(buffer[:count])

    def piece(self, token: int) -> bytes:
        """A token's bytes, which may end inside a UTF-8 character; special tokens have none."""
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
            "size_bytes": model_bytes(self.path),
            "kv_bytes_per_token": self._kv_bytes_per_token(),
            "n_vocab": self.n_vocab,
            "n_embd": self._dimension("embedding_length"),
            "n_ff": self._dimension("feed_forward_length"),
        }

    def _kv_bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in half precision, in all layers and KV heads; from metadata."""
        heads = self._dimension("attention.head_count")
        heads_kv = self._dimension("attention.head_count_kv") or heads
        head = self._dimension("attention.key_length") or self._dimension("embedding_length") // max(1, heads)
        return 2 * 2 * self._dimension("block_count") * heads_kv * head

    def _dimension(self, key: str) -> int:
        value = self.meta(f"{self.meta('general.architecture')}.{key}") or "0"
        return int(value) if value.isdecimal() else 0


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; `inference-server model fetch` gets the default model")
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error.strerror}); check its permissions") from error
    if missing := [part.name for part in model_parts(path) if not part.is_file()]:
        raise ModelError(f"{path}: its part {missing[0]} is missing; fetch or copy all parts into one folder")
    if begins != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file; convert the model to GGUF or choose another with --model")


def _load_failure(path: Path) -> str:
    detail = next((line for line in recent_errors if "not within the file bounds" in line), None)
    if detail is not None:
        return f"{path}: truncated; fetch or copy it again"
    return f"{path}: llama.cpp can't load it ({'; '.join(list(recent_errors)[-2:]) or 'no reason given'})"
