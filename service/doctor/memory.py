"""Checks that the chosen settings fit into memory."""

from __future__ import annotations

from service.doctor.finding import Finding, mib
from service.doctor.model_fit import ModelFacts
from tasks.memory_need import Need, available_bytes
from tasks.settings import WorkerSettings

#: Above this share of the available memory, nothing is left for the system's file cache.
_TIGHT = 0.9


def look_at_memory(facts: ModelFacts, settings: WorkerSettings) -> Finding:
    """Whether the memory that ``settings`` need is available."""
    need, available = Need.of(facts, settings), available_bytes()
    told = f"{need}; {mib(available)} available"
    advice = f"{_fitting(need, settings.n_ctx, facts.n_ctx_train, available)} makes it fit."
    if need.total > available:
        return Finding.judge("memory", told, problem=advice)
    tight = "Little is left for anything else; a lower --n-ctx or --slots would leave more."
    return Finding.judge("memory", told, warning=tight if need.total > _TIGHT * available else "")


def _fitting(need: Need, n_ctx: int, n_ctx_train: int, available: int) -> str:
    """Advice that fits: the largest context with all other settings as they are, if there is one."""
    room = (_TIGHT * available - need.weights - need.processes) / need.children - need.scratch
    fitting = min(int(n_ctx * room / max(1, need.cells)) // 256 * 256, n_ctx_train)
    if fitting >= 256:
        return f"--n-ctx {fitting}, or fewer --slots or --workers,"
    return "A smaller model, fewer --workers, or more memory"
