"""Messages about a worker whose children die before they are ready: what happened, and what to do.

The functions that make the messages are pure; :meth:`Circumstances.of` looks at the machine.
"""

from __future__ import annotations

import platform
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tasks.engine.errors import NO_MEMORY
from tasks.engine.kept import kernel_features
from tasks.memory_need import available_bytes, mib

if TYPE_CHECKING:
    from tasks.celery import App

#: Signals that end a process when its native code fails.
_FAULTS = (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT)
_REPAIR = (
    "The likely cause is a fault of llama.cpp's kernels for this processor, or of its build: run "
    "`inference-server doctor --repair`, then start the worker again."
)
_LESS = "Lower --slots, --n-ctx or --workers, or give it more memory."


@dataclass(frozen=True, slots=True)
class Death:
    """How a child ended: its exit ``status``, negative for a signal's number, and what it was doing."""

    status: int
    doing: str

    def __str__(self) -> str:
        doing = f" while {self.doing}" if self.doing else ""
        return f"{_ending(self.status)}{doing}"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What may explain a death, each as a text; ``file_change`` is empty if the model's file is the same."""

    file_change: str
    memory: str
    processor: str

    @classmethod
    def of(cls, app: App) -> Self:
        """The present circumstances of the worker that ``app`` belongs to."""
        change = "" if app.model_file is None else app.model_file.change()
        need = "" if app.memory_need is None else f"{app.memory_need}; "
        return cls(change, f"{need}{mib(available_bytes())} available", _processor())


def explain_deaths(num: int, death: Death, around: Circumstances) -> str:
    """The message when ``num`` children in a row died before they were ready, the last by ``death``."""
    happened = f"The worker gives up: {num} children in a row ended before they were ready, by {death}."
    return f"{happened} {_advice(death.status, around)} The processor: {around.processor}."


def explain_refusal(reason: str, around: Circumstances) -> str:
    """The message when a worker, or a child of it, found that no child can ever become ready."""
    told = [f"The worker can't serve: {reason.rstrip('.')}."]
    if around.file_change:
        told.append(_restart(around.file_change))
    if NO_MEMORY in reason:
        told.append(f"The memory: {around.memory}.")
    return " ".join(told)


def _advice(status: int, around: Circumstances) -> str:
    if around.file_change:
        return _restart(around.file_change)
    if status == -signal.SIGKILL:
        return f"The likely cause is that memory ran out: {around.memory}. {_LESS}"
    if -status in _FAULTS:
        return _REPAIR
    return "Its log says why; `inference-server doctor` checks the machine."


def _processor() -> str:
    return " ".join((platform.machine(), *kernel_features()))


def _restart(change: str) -> str:
    return f"{change} Start the worker again when the right file is in its place."


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"{signal.Signals(-status).name} ({signal.strsignal(-status)})"
    except ValueError:
        return f"signal {-status}"
