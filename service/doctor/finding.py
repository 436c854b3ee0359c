"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tasks.memory_need import mib

__all__ = ["Finding", "Level", "mib"]


class Level(StrEnum):
    """``PROBLEM``: something would not work. ``WARNING``: it works, but worse than it could."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result: ``about`` is its subject, ``told`` what was seen, ``advice`` what to change, if any."""

    about: str
    level: Level
    told: str
    advice: str = ""

    @classmethod
    def judge(cls, about: str, told: str, *, problem: str = "", warning: str = "") -> Finding:
        """A problem if ``problem`` has advice, a warning if ``warning`` has advice, else OK."""
        level = Level.PROBLEM if problem else Level.WARNING if warning else Level.OK
        return cls(about, level, told, problem or warning)
