"""Another program that uses a core."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.bare.build import TIMEOUT_S

#: Computes on one core; ends when its parent ends, or after the given seconds.
_PROGRAM = """
import os, sys, time
parent, end = os.getppid(), time.monotonic() + float(sys.argv[1])
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
while time.monotonic() < end and os.getppid() == parent:
    sum(range(100_000))
"""


@contextmanager
def one_core_busy() -> Iterator[None]:
    """Run a program that computes on the last core while the context is open."""
    program = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(TIMEOUT_S)])
    try:
        yield
    finally:
        program.terminate()
        program.wait()
