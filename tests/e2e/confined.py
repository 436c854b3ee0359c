"""Becomes a program with a unit's bounds on calls and memory: ``python confined.py UNIT PROGRAM ARGS…``.

systemd itself is not needed, only ``systemd-analyze``, which knows what its groups of system calls have in
them, and libseccomp.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 65, 1  # linux/prctl.h
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # seccomp.h: SCMP_ACT_ALLOW, SCMP_ACT_ERRNO(EPERM)


def why_not() -> str | None:
    """Why nothing can be confined here, or ``None``."""
    if shutil.which("systemd-analyze") is None:
        return "systemd-analyze is not here"
    return None if ctypes.util.find_library("seccomp") else "libseccomp is not here"


def allowed(unit: Path) -> set[str]:
    """The system calls that the unit's ``SystemCallFilter`` lines allow."""
    found = _calls("@default")
    for line in unit.read_text().splitlines():
        if line.startswith("SystemCallFilter="):
            words = line.partition("=")[2]
            named = set[str]().union(*(_calls(word) for word in words.lstrip("~").split()))
            found = found - named if words.startswith("~") else found | named
    return found


def _calls(word: str) -> set[str]:
    """A system call, or all those of a group."""
    if not word.startswith("@"):
        return {word}
    command = ["systemd-analyze", "syscall-filter", "--no-pager", word]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    words = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return set[str]().union(*map(_calls, words))


def _confine(calls: set[str]) -> None:
    seccomp = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(_REFUSE))
    for call in calls:
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # else another architecture has it
            seccomp.seccomp_rule_add_array(context, _ALLOW, number, 0, None)
    if ctypes.CDLL(None).prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0):
        sys.stderr.write("confined.py: this kernel can't refuse memory that becomes executable\n")
    if seccomp.seccomp_load(context):
        raise OSError("the filter can't be loaded")


if __name__ == "__main__":
    _confine(allowed(Path(sys.argv[1])))
    os.umask(0o077)
    os.execvp(sys.argv[2], sys.argv[2:])
