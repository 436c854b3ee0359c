"""A short note in memory that a worker's children share with their parent."""

from __future__ import annotations

import mmap

#: Bytes of a note at most, and of the number before it that says how many it has.
CAPACITY, _HEADER = 1 << 16, 4


class SharedNote:
    """Empty until some process writes it; make it before forking.

    Nothing is locked: who may write at the same time as others must see to it that they don't.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER + CAPACITY)

    def write(self, note: bytes) -> None:
        """Put a note in the place of the one before. Raises ``ValueError`` above :data:`CAPACITY` bytes."""
        if len(note) > CAPACITY:
            raise ValueError(f"a note of {len(note)} bytes is longer than {CAPACITY}")
        # The length comes last, so that the first note is there whole or not at all.
        self._memory[_HEADER : _HEADER + len(note)] = note
        self._memory[:_HEADER] = len(note).to_bytes(_HEADER, "little")

    def read(self) -> bytes:
        """The latest note."""
        size = int.from_bytes(self._memory[:_HEADER], "little")
        return self._memory[_HEADER : _HEADER + size]
