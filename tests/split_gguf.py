"""Splits a GGUF file into parts, as llama.cpp's ``llama-gguf-split`` does.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_ALIGNMENT = 32
_UINT16, _INT32, _STRING, _ARRAY = 2, 5, 8, 9
#: Bytes of a value of each other type.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass
class Reader:
    """Walks through a file's header."""

    raw: bytes
    at: int = 24

    def number(self, form: str) -> int:
        [found] = struct.unpack_from(f"<{form}", self.raw, self.at)
        self.at += struct.calcsize(form)
        return int(found)

    def text(self) -> bytes:
        size = self.number("Q")
        self.at += size
        return self.raw[self.at - size : self.at]

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            each, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip_value(each)
        else:
            self.at += _SIZES[kind]


@dataclass
class Tensor:
    """A tensor: its description up to the offset, and its data with padding."""

    about: bytes
    data: bytes


def split(model: Path, folder: Path, num_parts: int = 2) -> Path:
    """Write the model's parts into ``folder``; return the first one's path."""
    raw = model.read_bytes()
    reader = Reader(raw)
    num_tensors, num_values = struct.unpack_from("<QQ", raw, 8)
    start = reader.at
    for _ in range(num_values):
        reader.text()
        reader.skip_value(reader.number("I"))
    values = raw[start : reader.at]
    tensors = _tensors(reader, num_tensors)
    share = -(-len(tensors) // num_parts)
    for part in range(num_parts):
        own = tensors[part * share : (part + 1) * share]
        told = _split_values(part, num_parts, len(tensors))
        written = (values, num_values) if part == 0 else (b"", 0)
        body = _file(written[0] + told, written[1] + 3, own)
        _path(model, folder, part, num_parts).write_bytes(body)
    return _path(model, folder, 0, num_parts)


def _path(model: Path, folder: Path, part: int, num_parts: int) -> Path:
    return folder / f"{model.stem}-{part + 1:05}-of-{num_parts:05}.gguf"


def _tensors(reader: Reader, num: int) -> list[Tensor]:
    abouts, offsets = [], []
    for _ in range(num):
        start = reader.at
        reader.text()
        num_dimensions = reader.number("I")
        reader.at += 8 * num_dimensions + 4
        abouts.append(reader.raw[start : reader.at])
        offsets.append(reader.number("Q"))
    begin = reader.at + -reader.at % _ALIGNMENT
    ends = sorted([*offsets, len(reader.raw) - begin])
    spans = [(offset, ends[ends.index(offset) + 1]) for offset in offsets]
    return [
        Tensor(about, reader.raw[begin + first : begin + last])
        for about, (first, last) in zip(abouts, spans, strict=True)
    ]


def _split_values(part: int, num_parts: int, num_tensors: int) -> bytes:
    def value(name: str, kind: int, form: str, number: int) -> bytes:
        return struct.pack(f"<Q{len(name)}sI{form}", len(name), name.encode(), kind, number)

    return (
        value("split.no", _UINT16, "H", part)
        + value("split.count", _UINT16, "H", num_parts)
        + value("split.tensors.count", _INT32, "i", num_tensors)
    )


def _file(values: bytes, num_values: int, tensors: list[Tensor]) -> bytes:
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), num_values) + values, b""
    for tensor in tensors:
        head += tensor.about + struct.pack("<Q", len(data))
        data += tensor.data + bytes(-len(tensor.data) % _ALIGNMENT)
    return head + bytes(-len(head) % _ALIGNMENT) + data
