"""An engine's sink that tests can wait on."""

from __future__ import annotations

from collections import defaultdict
from queue import SimpleQueue
from threading import Event as Flag

from tasks.engine.sequence import Delta, Ending


class Outputs:
    """Keeps what an engine gives, by job."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = defaultdict(str)
        self.tokens: dict[str, tuple[int, ...]] = defaultdict(tuple)
        self.endings: dict[str, Ending] = {}
        self.begun = Flag()
        self._ended: SimpleQueue[str] = SimpleQueue()

    def __call__(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.texts[delta.key] += delta.text
            self.tokens[delta.key] += delta.tokens
            if delta.tokens:
                self.begun.set()
            if delta.ending is not None:
                self.endings[delta.key] = delta.ending
                self._ended.put(delta.key)

    def wait(self, count: int = 1) -> list[str]:
        """The keys of the next ``count`` jobs to end."""
        return [self._ended.get(timeout=60) for _ in range(count)]
