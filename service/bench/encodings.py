"""One model in several encodings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from service.bench.cases import Encoded
from service.weights import model_files

_IN_NAME = re.compile(r"[.-](I?Q\d\w*|B?F16|F32)\.gguf\Z", re.IGNORECASE)


def encoding_of(path: Path) -> str:
    """What the file's name says, in capitals; ``as it is`` when it says nothing."""
    found = _IN_NAME.search(path.name)
    return found[1].upper() if found else "as it is"


def coarser(source: Path | None, among: Sequence[str] = ("Q8_0", "Q4_K_M", "Q4_0")) -> tuple[str, ...]:
    """The encoding of ``source``, or of the default model, and those of ``among`` with fewer bits a weight.

    Encoding anew adds nothing, so that a finer one than the file's would only be slower.
    """
    own = encoding_of(source) if source else model_files.DEFAULT_ENCODING
    return (own, *(name for name in among if _bits(name) < _bits(own)))


def encoded(source: Path | None, encoding: str, progress: model_files.Progress) -> Encoded:
    """``source`` as ``encoding``, or the default model without a ``source``.

    A file of that name beside the source or among the models is taken as it is.

    Raises:
        service.weights.model_files.ModelError: it can't be had.
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
    """Each of ``encodings``; without any, the file as it is."""
    if encodings:
        return tuple(encoded(source, encoding, progress) for encoding in encodings)
    path = source or model_files.default_model()
    return (Encoded(encoding_of(path), path),)


def _bits(encoding: str) -> int:
    """Bits of a weight, about; 0 of a name that doesn't tell."""
    found = re.search(r"\d+", encoding)
    return int(found[0]) if found else 0
