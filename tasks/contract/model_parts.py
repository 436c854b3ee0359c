"""The files of a model: a large GGUF file may be split into parts.

The parts' names are llama.cpp's (``llama_split_path`` in ``src/llama.cpp``): ``NAME-00001-of-00003.gguf``.
The first part names the model.
"""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"(?P<name>.+)-\d{5}-of-(?P<number>\d{5})\.gguf", re.DOTALL)


def model_parts(path: Path) -> list[Path]:
    """All files of the model at ``path``, in order, whether they are there or not."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    last = int(found["number"])
    names = (f"{found['name']}-{part:05}-of-{last:05}.gguf" for part in range(1, last + 1))
    return [path.with_name(name) for name in names]


def model_bytes(path: Path) -> int:
    """Bytes of all files of the model at ``path``. Raises ``OSError`` when one is missing."""
    return sum(part.stat().st_size for part in model_parts(path))
