"""A short note in memory that a worker's children share with their parent."""

from __future__ import annotations

import mmap

#: Most bytes of a note, and the bytes of the number before it, which is its length.
CAPACITY, _HEADER = 1 << 16, 4


class SharedNote:
    """A note that is empty until a process writes it; make it before forking.

    It has no lock: processes that may write at the same time must prevent that themselves.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER + CAPACITY)

    def write(self, note: bytes) -> None:
        """Replace the note.

        Raises:
            ValueError: the new note is longer than :data:`CAPACITY` bytes.
        """
        if len(note) > CAPACITY:
            raise ValueError(f"a note of {len(note)} bytes is longer than {CAPACITY}")
        # The length is written last, so that a reader gets the first note whole or not at all.
        self._memory[_HEADER : _HEADER + len(note)] = note
        self._memory[:_HEADER] = len(note).to_bytes(_HEADER, "little")

    def read(self) -> bytes:
        """The latest note."""
        size = int.from_bytes(self._memory[:_HEADER], "little")
        return self._memory[_HEADER : _HEADER + size]
