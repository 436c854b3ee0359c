"""Asks llama.cpp something in a process of its own: native code that fails must not take this one along."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class NativeError(Exception):
    """It could not answer; the text is its last word on why."""


def ask(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON object that ``python -m module`` prints last. Raises :class:`NativeError`."""
    # -P: the working directory may be anyone's, with a folder that is called ``tasks``.
    command = [sys.executable, "-P", "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    told = done.stderr.strip()
    if "Traceback" in told:
        told = told.splitlines()[-1]
    raise NativeError(told or f"{' '.join((module, *arguments))} ended with {done.returncode}.")
