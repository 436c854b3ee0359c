"""Becomes a program that the kernel ends with the process that started it: ``tether.py PARENT PROGRAM …``.

It is started by its path with ``-I -S`` and uses only the standard library, as the keeper does. The parent
can't do this between fork and exec: it may have threads. The kernel's rule is about the thread that started
this one, so that thread must live as long as the parent does.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Ask for SIGKILL at the parent's end, and become the program."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before it was asked
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
