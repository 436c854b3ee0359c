"""Whether a model's files are still the ones that the worker loaded; children may still read their pages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

from tasks.contract.model_parts import model_parts

#: Samples of a file that stand for the whole: so many, of so many bytes each, spread evenly.
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True, slots=True)
class _Part:
    """One of a model's files: which it is, its bytes, its last change in nanoseconds, a digest of samples."""

    path: Path
    device: int
    inode: int
    size: int
    changed_ns: int
    digest: bytes = b""

    @classmethod
    def at(cls, path: Path) -> Self:
        """The file as it is now, without a digest. Raises ``OSError``."""
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """What differs if the file is another one, or was written to."""
        return self.device, self.inode, self.size, self.changed_ns

    def is_damaged(self) -> bool:
        """Whether this very file was cut short or has other contents now."""
        try:
            now = _Part.at(self.path)
        except OSError:
            return False
        if now.identity == self.identity or (now.device, now.inode) != (self.device, self.inode):
            return False
        return now.size < self.size or _digest(self.path, self.size) != self.digest


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's files as they were at one moment; there are no ``parts`` if one was not there."""

    path: Path
    parts: tuple[_Part, ...]

    @classmethod
    def at(cls, path: Path) -> Self:
        """The files as they are now."""
        try:
            found = [_Part.at(part) for part in model_parts(path)]
        except OSError:
            return cls(path, ())
        sampled = (_digest(part.path, part.size) for part in found)
        return cls(path, tuple(_Part(p.path, *p.identity, d) for p, d in zip(found, sampled, strict=True)))

    def change(self) -> str:
        """What has happened to the files since then, as a sentence; empty when nothing has."""
        try:
            now = [_Part.at(part.path).identity for part in self.parts]
        except OSError:
            now = None
        if now == [part.identity for part in self.parts]:
            return ""
        word = "is gone" if now is None else "has changed"
        return f"The model file {self.path} {word} since the worker loaded it."

    def is_damaged(self) -> bool:
        """Whether a file that was loaded was cut short or has other contents now.

        Then the pages that children read are gone, or no longer the model's. A file that was deleted, or
        replaced by renaming, still has its pages; one that was only touched has them, too.
        """
        return any(part.is_damaged() for part in self.parts)


def _digest(path: Path, size: int) -> bytes:
    """A digest of samples of the file's first ``size`` bytes; empty if it can't be read."""
    digest = blake2b()
    try:
        with path.open("rb") as file:
            for sample in range(_NUM_SAMPLES + 1):
                start = max(0, size - _SAMPLE_BYTES) * sample // _NUM_SAMPLES
                digest.update(os.pread(file.fileno(), min(_SAMPLE_BYTES, size - start), start))
    except OSError:
        return b""
    return digest.digest()
