"""Exit statuses that mean something to the process that started this one."""

from __future__ import annotations

#: The worker would fail again in the same way until something is changed; sysexits.h calls this
#: ``EX_CONFIG``. A supervisor does not start the worker again.
HOPELESS = 78
