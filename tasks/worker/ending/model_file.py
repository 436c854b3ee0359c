"""Whether a model's file is still the one that the worker loaded; children may still read its pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tasks.contract.model_parts import model_parts

#: Of each of the model's files: device, inode, bytes, and time of the last change in nanoseconds.
Identity = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file and its identity at one moment; ``identity`` is ``None`` if the file was not there."""

    path: Path
    identity: Identity | None

    @classmethod
    def at(cls, path: Path) -> Self:
        """The file as it is now."""
        return cls(path, _identity(path))

    def change(self) -> str:
        """What has happened to the file since then, as a sentence; empty when nothing has."""
        now = _identity(self.path)
        if now == self.identity or self.identity is None:
            return ""
        word = "is gone" if now is None else "has changed"
        return f"The model file {self.path} {word} since the worker loaded it."


def _identity(path: Path) -> Identity | None:
    try:
        found = [part.stat() for part in model_parts(path)]
    except OSError:
        return None
    return tuple((part.st_dev, part.st_ino, part.st_size, part.st_mtime_ns) for part in found)
