"""Prompts that are being made into tokens: they keep a slot busy, and can be broken off meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic

from tasks.contract.messages import GenerateRequest
from tasks.worker.attempt import Attempt

#: A piece of a prompt that takes longer than this, and so many seconds for each character, hangs.
_PIECE_S, _CHARACTER_S = 10.0, 1e-4


class NotWantedError(Exception):
    """The attempt is over: the request has ended, or runs elsewhere."""


class Preparing:
    """The prompts of one child; each is prepared in a separate thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: When each piece is done at the latest, unless it hangs, by the attempt's key; monotonic seconds.
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def gets_on(self) -> bool:
        """Whether no prompt hangs."""
        now = monotonic()
        with self._lock:
            return all(now < due for due in self._due.values())

    @contextmanager
    def prompt_of(self, attempt: Attempt) -> Iterator[Callable[[], None]]:
        """Note an attempt's prompt while the block prepares it.

        Now and then the block calls the function that it gets, which raises ``NotWantedError`` if the attempt
        is over.
        """
        patience = _PIECE_S + _CHARACTER_S * _size(attempt.request)

        def check() -> None:
            if attempt.over.is_set():
                raise NotWantedError(attempt.id)
            self._due[attempt.key] = monotonic() + patience

        with self._lock:
            self._due[attempt.key] = monotonic() + patience
        try:
            yield check
        finally:
            with self._lock:
                del self._due[attempt.key]


def _size(request: GenerateRequest) -> int:
    """Characters that have to be looked at."""
    return len(request.prompt or "") + sum(len(message.content) for message in request.messages or ())
