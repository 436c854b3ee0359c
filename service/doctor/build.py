"""Whether llama.cpp computes here, with which kernels, and how it was built."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from pathlib import Path

from service.doctor.finding import Finding, Level
from service.weights.llama_subprocess import NativeError, ask
from tasks.settings import WorkerSettings

#: Features that matter for speed, the most important first: the processor's name → llama.cpp's name.
_FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx_vnni": "AVX_VNNI",
    "amx_int8": "AMX_INT8",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
}
_REPAIR = "Build it again for this machine: inference-server doctor --repair"


def look_at_build(settings: WorkerSettings) -> Finding:
    """Whether llama.cpp uses all of the processor, and the GPU if the settings ask for one."""
    try:
        build = ask("tasks.engine.llama.about")
    except NativeError as error:
        return Finding("llama.cpp", Level.PROBLEM, str(error), _REPAIR)
    told = f"llama-cpp-python {build['version']} with {', '.join(build['features'])}"
    if settings.gpu_layers and not build["has_gpu"]:
        return Finding.judge(
            "llama.cpp", f"{told}, built without GPU support", problem="Leave --gpu-layers out."
        )
    missing = _missing(_flags(), build["features"])
    lacks = f"; unused: {', '.join(missing)}" if missing else ""
    return Finding.judge("llama.cpp", told + lacks, warning=_REPAIR if missing else "")


def look_at_kernels(path: Path, settings: WorkerSettings) -> Finding:
    """Compute the model's first batches as a child would, and check that the results are right."""
    shape = settings.shape
    asked = {
        "model": str(path.absolute()),
        "gpu_layers": settings.gpu_layers,
        "slots": shape.slots,
        "n_ctx": settings.n_ctx,
        "n_batch": settings.n_batch,
        "threads": shape.workers * shape.threads,
    }
    try:
        found = ask("tasks.engine.kernels.check", json.dumps(asked))
    except NativeError as error:
        return Finding("kernels", Level.PROBLEM, str(error), _REPAIR if "kernels" in str(error) else "")
    return Finding.judge("kernels", f"computed with {found['chosen']}", warning=found["warning"])


def _missing(flags: Iterable[str], features: Iterable[str]) -> list[str]:
    """The features that the processor has and the build doesn't use."""
    has, uses = set(flags), set(features)
    if "AVX512_VNNI" in uses:
        has.discard("avx_vnni")  # the same instructions for shorter registers
    return [theirs for ours, theirs in _FEATURES.items() if ours in has and theirs not in uses]


def _flags() -> list[str]:
    """The processor's features; none where the system doesn't list them."""
    if platform.system() != "Linux":
        return []
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return line.partition(":")[2].split()
    return []
