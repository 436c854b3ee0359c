"""Tiny models with random weights, one for each way in which llama.cpp remembers a sequence.

``attends``: all cells are kept (Llama); ``slides``: most layers look back :data:`WINDOW` tokens (Gemma 3);
``recurs``: one state that can't go back (Mamba); ``mixes``: states and cells (LFM2); ``mixes_windows``:
states, and cells of a window. Their words mean nothing, but their logits show whether they have read what
they should have read. The format: GGUF version 3 (ggml/docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Width, layers, attention heads, width of the inner layer; tokens of the window.
EMBD, LAYERS, HEADS, INNER, WINDOW = 64, 3, 4, 128, 32
HEAD = EMBD // HEADS
#: Three special tokens and one token a byte.
VOCABULARY = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6
_U32, _I32, _F32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_ALIGNMENT = 32

Shapes = dict[str, tuple[int, ...]]


def attends(path: Path) -> Path:
    """Write a Llama."""
    return _write(path, "llama", _ATTENTION, {**_heads(), **_each_layer(_attention(), _feed_forward())})


def slides(path: Path) -> Path:
    """Write a Gemma 3: every layer but each sixth one sees only its window."""
    extra: Shapes = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
    after: Shapes = {"post_attention_norm.weight": (EMBD,), "post_ffw_norm.weight": (EMBD,)}
    facts = {**_ATTENTION, "attention.sliding_window": WINDOW}
    return _write(
        path, "gemma3", facts, {**_heads(), **_each_layer(_attention(), extra, after, _feed_forward())}
    )


def recurs(path: Path) -> Path:
    """Write a Mamba."""
    inner, state, rank = 2 * EMBD, 16, 4
    layer = {
        "attn_norm.weight": (EMBD,),
        "ssm_in.weight": (2 * inner, EMBD),
        "ssm_conv1d.weight": (inner, 4),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (rank + 2 * state, inner),
        "ssm_dt.weight": (inner, rank),
        "ssm_dt.bias": (inner,),
        "ssm_a": (inner, state),
        "ssm_d": (inner,),
        "ssm_out.weight": (EMBD, inner),
    }
    facts = {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
    }
    return _write(path, "mamba", facts, {**_heads(), **_each_layer(layer)})


def mixes(path: Path, **facts: Any) -> Path:
    """Write an LFM2: a layer of attention between two layers with short convolutions."""
    norms = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
    convolution = {
        "attn_norm.weight": (EMBD,),
        "shortconv.conv.weight": (EMBD, 3),
        "shortconv.in_proj.weight": (3 * EMBD, EMBD),
        "shortconv.out_proj.weight": (EMBD, EMBD),
    }
    kinds = [convolution, {**_attention(), **norms}, convolution]
    layers = [
        {f"blk.{number}.{name}": shape for name, shape in {**kind, **_feed_forward()}.items()}
        for number, kind in enumerate(kinds)
    ]
    shapes = {name: shape for layer in layers for name, shape in layer.items()}
    heads = {"token_embd.weight": (len(VOCABULARY), EMBD), "token_embd_norm.weight": (EMBD,)}
    facts = {**_ATTENTION, "attention.head_count_kv": [0, HEADS, 0], "shortconv.l_cache": 3, **facts}
    return _write(path, "lfm2", facts, {**heads, **shapes})


def mixes_windows(path: Path) -> Path:
    """Write an LFM2 whose attention sees only its window."""
    return mixes(path, **{"attention.sliding_window": WINDOW})


#: The models by what they do with their cells.
FAMILIES: Mapping[str, Callable[[Path], Path]] = {
    "attends": attends,
    "slides": slides,
    "recurs": recurs,
    "mixes": mixes,
    "mixes_windows": mixes_windows,
}

_ATTENTION: dict[str, Any] = {
    "attention.head_count": HEADS,
    "attention.head_count_kv": HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
}


def _heads() -> Shapes:
    return {"token_embd.weight": (len(VOCABULARY), EMBD), "output_norm.weight": (EMBD,)}


def _attention() -> Shapes:
    square = {f"attn_{name}.weight": (EMBD, EMBD) for name in ("q", "k", "v", "output")}
    return {"attn_norm.weight": (EMBD,), **square}


def _feed_forward() -> Shapes:
    return {
        "ffn_norm.weight": (EMBD,),
        "ffn_gate.weight": (INNER, EMBD),
        "ffn_up.weight": (INNER, EMBD),
        "ffn_down.weight": (EMBD, INNER),
    }


def _each_layer(*parts: Shapes) -> Shapes:
    layer = {name: shape for part in parts for name, shape in part.items()}
    return {f"blk.{number}.{name}": shape for number in range(LAYERS) for name, shape in layer.items()}


def _write(path: Path, architecture: str, facts: Mapping[str, Any], shapes: Shapes) -> Path:
    random = np.random.default_rng(7)
    tensors = {name: _weights(name, shape, random) for name, shape in shapes.items()}
    meta = {**_about(architecture), **{f"{architecture}.{name}": value for name, value in facts.items()}}
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)))
        file.write(b"".join(_text(name.encode()) + _value(value) for name, value in meta.items()))
        offset = 0
        for name, values in tensors.items():
            sizes = values.shape[::-1]  # the innermost dimension comes first
            file.write(_text(name.encode()) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
            file.write(struct.pack("<IQ", 0, offset))
            offset += _padded(values.nbytes)
        file.write(bytes(_padded(file.tell()) - file.tell()))
        for values in tensors.values():
            file.write(values.tobytes().ljust(_padded(values.nbytes), b"\0"))
    return path


def _weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    if name.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    if name.endswith("ssm_a"):
        # Between -1 and 0: states fade slowly, so that what was read long ago still counts.
        return -random.uniform(0.01, 0.3, shape).astype(np.float32)
    return random.normal(0, 1.5 / np.sqrt(shape[-1]), shape).astype(np.float32)


def _about(architecture: str) -> dict[str, Any]:
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    return {
        "general.architecture": architecture,
        "general.name": f"tiny {architecture}",
        f"{architecture}.context_length": 4096,
        f"{architecture}.embedding_length": EMBD,
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.feed_forward_length": INNER,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.scores": [0.0] * len(VOCABULARY),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind, _ = _scalar(value[0], _I32)
        raw = b"".join(_scalar(each, _I32)[1] for each in value)
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + raw
    kind, raw = _scalar(value, _U32)
    return struct.pack("<I", kind) + raw


def _scalar(value: Any, integer: int) -> tuple[int, bytes]:
    if isinstance(value, str | bytes):
        return _STRING, _text(value if isinstance(value, bytes) else value.encode())
    if isinstance(value, float):
        return _F32, struct.pack("<f", value)
    return integer, struct.pack("<I", value)


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
