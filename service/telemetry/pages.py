"""Numbers in memory that all API processes share: each adds to its own page, and each can read them all.

gunicorn's parent makes the memory before it forks. A process that replaces a dead one goes on in its page, so
counts only grow, whichever process dies, and there are no more pages than processes at the same time. No file
is behind the memory: a full disk neither ends a process nor stops its counting. Standard library only.
"""

from __future__ import annotations

import logging
import mmap
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

log = logging.getLogger(__name__)

#: Bytes of a page; memory that is not touched costs nothing. A model's figures take about 3 kB.
PAGE_BYTES = 1 << 20
_WORD = 8


class Page:
    """Rows of numbers, each under a name; one process adds to them, and others may read meanwhile.

    The first word of the memory is the number of words in use after it. A row is two words, the bytes of its
    name and the count of its numbers, then the name, padded to whole words, and the numbers.
    """

    def __init__(self, memory: memoryview[int]) -> None:
        self._memory, self._words, self._numbers = memory, memory.cast("q"), memory.cast("d")
        self._rows = dict(self.rows())
        self._is_full = False

    def row(self, name: str, size: int) -> memoryview[float]:
        """The row of this name, with ``size`` numbers; a new one has zeros."""
        found = self._rows.get(name)
        if found is None:
            found = self._rows[name] = self._append(name.encode(), size)
        return found

    def rows(self) -> Iterator[tuple[str, memoryview[float]]]:
        """All rows by their names."""
        place, end = 1, 1 + self._words[0]
        while place < end:
            length, size = self._words[place], self._words[place + 1]
            name, start = _WORD * (place + 2), place + 2 + _num_words(length)
            yield self._memory[name : name + length].tobytes().decode(), self._numbers[start : start + size]
            place = start + size

    def _append(self, name: bytes, size: int) -> memoryview[float]:
        used = self._words[0]
        place = 1 + used
        start = place + 2 + _num_words(len(name))
        if start + size > len(self._words):
            self._complain()
            return memoryview(array("d", bytes(_WORD * size)))
        self._words[place], self._words[place + 1] = len(name), size
        self._memory[_WORD * (place + 2) : _WORD * (place + 2) + len(name)] = name
        self._words[0] = start + size - 1  # last, so that nobody reads half a row
        return self._numbers[start : start + size]

    def _complain(self) -> None:
        if not self._is_full:
            log.warning("Too many models: /metrics leaves out what does not fit %d bytes", PAGE_BYTES)
        self._is_full = True


class Pages:
    """The pages of all processes, and which of them are taken."""

    def __init__(self, count: int = 1) -> None:
        memory = memoryview(mmap.mmap(-1, count * PAGE_BYTES))
        self._memories = [memory[n * PAGE_BYTES : (n + 1) * PAGE_BYTES] for n in range(count)]
        self._free = list(range(count))

    def take(self) -> int | None:
        """The number of a free page, the lowest one; ``None`` if there is none."""
        return self._free.pop(0) if self._free else None

    def give_back(self, number: int | None) -> None:
        """Let another process go on in the page, since the one that had it is gone."""
        if number is not None:
            self._free = sorted({*self._free, number})

    def page(self, number: int | None) -> Page:
        """A page to add to; without a number it is one that nobody else reads."""
        return Page(memoryview(bytearray(PAGE_BYTES)) if number is None else self._memories[number])

    def totals(self) -> dict[str, list[float]]:
        """The sums of the rows of all pages, by their names."""
        found: dict[str, list[list[float]]] = defaultdict(list)
        for memory in self._memories:
            for name, row in Page(memory).rows():
                found[name].append(list(row))
        return {name: [sum(numbers) for numbers in zip(*rows, strict=True)] for name, rows in found.items()}


@dataclass(frozen=True, slots=True)
class Share:
    """What one process has of the pages."""

    pages: Pages
    own: Page

    @classmethod
    def alone(cls) -> Share:
        """The share of a process without siblings."""
        return cls.of(Pages(), 0)

    @classmethod
    def of(cls, pages: Pages, number: int | None) -> Share:
        """The share of the process that took page ``number``."""
        return cls(pages, pages.page(number))


def _num_words(num_bytes: int) -> int:
    return -(-num_bytes // _WORD)
