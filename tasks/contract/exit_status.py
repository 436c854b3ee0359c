"""Exit statuses that mean something to the process that started this one."""

from __future__ import annotations

#: A worker that would fail again in the same way until something is changed; sysexits.h calls it
#: ``EX_CONFIG``. A supervisor does not start it again.
HOPELESS = 78
