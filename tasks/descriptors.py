"""How many files and connections a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit() -> int:
    """Raise this process's limit of open files to the most that it may set; return the limit.

    The usual limit of 1,024 is for programs that use ``select``, which none of ours does. Processes that this
    one starts inherit the limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
