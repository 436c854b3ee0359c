"""A program that the supervisor runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


def _at_once() -> bool:
    return True


def _nothing(_age_s: float) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Part:
    """One program of the service.

    Attributes:
        name: for messages, and for its log's name.
        command: what to run; ``env`` is its whole environment, ``cwd`` its working directory.
        log: file that its output is appended to.
        stop_timeout_s: seconds from SIGTERM to SIGKILL.
        told: text for a person: what is happening until the part is ready.
        is_ready: whether the next part may start; it must answer quickly and raise nothing.
        last_words: given a number of seconds, the reason that the part left in that time for not going on,
            or an empty text; it must answer quickly and raise nothing.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    stop_timeout_s: float
    told: str
    is_ready: Callable[[], bool] = _at_once
    last_words: Callable[[float], str] = _nothing
