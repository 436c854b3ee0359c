"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

#: The processor's features that decide which kernels it can run, as Linux names them.
_FOR_KERNELS = re.compile(r"(avx2|fma|f16c|avx512\w*|avx_vnni\w*|amx\w*|asimd\w*|i8mm|bf16|sve\w*)\Z")


def machine() -> str:
    """The processor, cores, system and Python of this machine."""
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{_processor()}, {os.cpu_count()} cores, {system}"


def kernel_features() -> tuple[str, ...]:
    """The processor's features that matter to kernels; none where the system doesn't list them."""
    return for_kernels(_cpuinfo("flags", "Features"))


def for_kernels(listed: str) -> tuple[str, ...]:
    """Of all features in ``listed``, those that decide which kernels can run."""
    return tuple(name for name in listed.split() if _FOR_KERNELS.match(name))


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(*names: str) -> str:
    """The first value that the system's list of processors has under one of ``names``."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")
