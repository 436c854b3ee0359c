"""Asks llama.cpp something in a separate process, so that a crash of native code doesn't end this one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class NativeError(Exception):
    """The process could not answer; the text is its last error message."""


def ask(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON object that ``python -m module`` prints last. Raises :class:`NativeError`."""
    # -P: don't import from the working directory, which may have another folder named ``tasks``.
    command = [sys.executable, "-P", "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    told = done.stderr.strip()
    if "Traceback" in told:
        told = told.splitlines()[-1]
    raise NativeError(told or f"{' '.join((module, *arguments))} ended with {done.returncode}.")
