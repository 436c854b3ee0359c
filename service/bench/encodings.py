"""One model in several encodings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from service.bench.cases import Encoded
from service.weights import model_files

_IN_NAME = re.compile(r"[.-](I?Q\d\w*|B?F16|F32)\.gguf\Z", re.IGNORECASE)


def encoding_of(path: Path) -> str:
    """The encoding in the file's name, in capitals; ``as it is`` if the name has none."""
    found = _IN_NAME.search(path.name)
    return found[1].upper() if found else "as it is"


def coarser(source: Path | None, among: Sequence[str] = ("Q8_0", "Q4_K_M", "Q4_0")) -> tuple[str, ...]:
    """The encoding of ``source`` or the default model, and all of ``among`` with fewer bits per weight.

    Re-encoding adds no information, so an encoding finer than the file's would only be slower.
    """
    own = encoding_of(source) if source else model_files.DEFAULT_ENCODING
    return (own, *(name for name in among if _bits(name) < _bits(own)))


def encoded(source: Path | None, encoding: str, progress: model_files.Progress) -> Encoded:
    """The file of ``source`` in ``encoding``; without a ``source``, of the default model.

    If a file of that name exists beside the source or in the models' folder, it is used as it is.

    Raises:
        service.weights.model_files.ModelError: the file can't be fetched or re-encoded.
    """
    if source is None:
        return Encoded(encoding, model_files.fetch(model_files.models_dir(), encoding, progress)[0])
    if encoding == encoding_of(source):
        return Encoded(encoding, source)
    name = f"{_IN_NAME.sub('', source.name).removesuffix('.gguf')}.{encoding}.gguf"
    candidates = (source.with_name(name), model_files.models_dir() / name)
    there = next((path for path in candidates if path.is_file()), None)
    return Encoded(encoding, there or model_files.reencode(source, encoding, candidates[1], progress))


def all_encoded(
    source: Path | None, encodings: Sequence[str], progress: model_files.Progress
) -> tuple[Encoded, ...]:
    """The model in each of ``encodings``; without encodings, the file as it is."""
    if encodings:
        return tuple(encoded(source, encoding, progress) for encoding in encodings)
    path = source or model_files.default_model()
    return (Encoded(encoding_of(path), path),)


def _bits(encoding: str) -> int:
    """About how many bits a weight has; 0 if the name doesn't say."""
    found = re.search(r"\d+", encoding)
    return int(found[0]) if found else 0
