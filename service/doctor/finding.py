"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """``PROBLEM``: something would not work. ``WARNING``: it works, but worse than it could."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """``about`` what, ``told`` what was seen, ``advice`` what to change unless all is well."""

    about: str
    level: Level
    told: str
    advice: str = ""

    @classmethod
    def judge(cls, about: str, told: str, *, problem: str = "", warning: str = "") -> Finding:
        """A problem or a warning where there is advice for one, else all is well."""
        level = Level.PROBLEM if problem else Level.WARNING if warning else Level.OK
        return cls(about, level, told, problem or warning)


def mib(num_bytes: float) -> str:
    """Bytes for people."""
    return f"{num_bytes / 2**20:,.0f} MiB"
