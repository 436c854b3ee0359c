"""Runs one trial, each stage within a time limit, and says how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.engine.errors import ModelError
from tasks.engine.kept import model_size
from tasks.engine.kernels.trial import Plan

#: The folder that this package is imported from, so that the trial imports the same one.
_ROOT = Path(__file__).resolve().parents[3]
#: For the time limit on loading: bytes per second that any disk can read, and seconds added to that time.
_LOAD_BYTES_PER_S, _LOAD_S = 20e6, 30.0
#: Seconds to wait for a killed trial to end.
_END_S = 10.0

#: How the failure of a trial that didn't end in time begins.
HUNG = "hung"


def _environment() -> dict[str, str]:
    """This process's environment with an absolute library path, since the trial runs in another folder."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    return {**os.environ, **({"LLAMA_CPP_LIB_PATH": str(Path(folder).absolute())} if folder else {})}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended: ``result`` if it finished, else ``failure``, as text for people.

    ``variants`` are the kernels that run on this processor, best first; only the reference finds them.
    """

    result: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    variants: tuple[str, ...] = ()


def run(plan: Plan, limit_s: float) -> Outcome:
    """Run a trial; each stage of computing gets ``limit_s`` seconds.

    Raises:
        ModelError: the cause is the file or a lack of memory, so other kernels would fail too.
    """
    command = [sys.executable, "-m", "tasks.engine.kernels.trial", json.dumps(asdict(plan))]
    process = subprocess.Popen(
        command, cwd=_ROOT, env=_environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        return _Watch(process, Path(plan.model), limit_s).outcome()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # The output ends when the trial's child, which may hold the GPU's memory, has ended too.
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)


class _Watch:
    def __init__(self, process: subprocess.Popen[bytes], model: Path, limit_s: float) -> None:
        self._process, self._limit_s = process, limit_s
        self._load_limit_s = _LOAD_S + model_size(model) / _LOAD_BYTES_PER_S
        self._stage = "starting"
        self._variants: tuple[str, ...] = ()
        self._rest = b""

    def outcome(self) -> Outcome:
        """Read the trial's output to its end."""
        return replace(self._read(), variants=self._variants)

    def _read(self) -> Outcome:
        while (line := self._line()) is not None:
            if not line:
                return self._ended(self._process.wait())
            told = _told(line)
            if "result" in told:
                return Outcome(result=told["result"])
            if "died" in told:
                return self._ended(told["died"])
            if "error" in told:
                raise ModelError(told["error"])
            self._variants = tuple(told.get("variants", self._variants))
            self._stage = told.get("stage", self._stage)
        return Outcome(failure=f"{HUNG} while {self._stage}: no end after {self._limit:.0f} s")

    @property
    def _limit(self) -> float:
        return self._limit_s if self._stage.startswith(("computing", "making")) else self._load_limit_s

    def _line(self) -> bytes | None:
        """The next line; empty at the end of the output, ``None`` when the time for this stage is over."""
        until = time.monotonic() + self._limit
        output = self._process.stdout
        assert output is not None  # noqa: S101 - it is a pipe
        while b"\n" not in self._rest:
            ready, _, _ = select.select([output], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(output.fileno(), 65536)
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _ended(self, status: int) -> Outcome:
        how = signal_name(-status) if status < 0 else f"exit status {status}"
        return Outcome(failure=f"ended with {how} while {self._stage}")


def _told(line: bytes) -> dict[str, Any]:
    """The JSON object in a line; empty if a library printed the line instead of the trial."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def signal_name(number: int) -> str:
    """A signal's name, such as SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


Run = Callable[[Plan, float], Outcome]
