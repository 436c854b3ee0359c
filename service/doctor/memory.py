"""Whether the chosen setting fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from service.doctor.finding import Finding, mib
from service.doctor.model import ModelFacts
from tasks.settings import WorkerSettings

#: What a child takes beside its context, and what all other processes take together, measured.
CHILD_BYTES = 40 << 20
OTHERS_BYTES = 220 << 20
#: Rows of activations that are alive at once in a layer: of the embedding's and the feed-forward's width.
_EMBD_ROWS, _FF_ROWS = 6, 3
_FLOAT_BYTES = 4
#: Beyond this share of what is there, nothing is left for the system's file cache.
_TIGHT = 0.9
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes: ``weights`` once, ``cells`` and ``scratch`` in each child, what processes take anyway."""

    weights: int
    cells: int
    scratch: int
    children: int
    processes: int

    @classmethod
    def of(cls, facts: ModelFacts, settings: WorkerSettings) -> Need:
        """What ``settings`` need. With the GPU's memory out of sight, all counts as the machine's."""
        shape, n_batch = settings.shape, settings.n_batch
        cells = shape.slots * settings.n_ctx * facts.kv_bytes_per_token
        activations = n_batch * (_EMBD_ROWS * facts.n_embd + _FF_ROWS * facts.n_ff) * _FLOAT_BYTES
        logits = shape.slots * facts.n_vocab * _FLOAT_BYTES
        processes = shape.workers * CHILD_BYTES + OTHERS_BYTES
        return cls(facts.size_bytes, cells, activations + logits, shape.workers, processes)

    @property
    def buffers(self) -> int:
        """Of one child's context."""
        return self.cells + self.scratch

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.children * self.buffers + self.processes

    def __str__(self) -> str:
        return (
            f"{mib(self.total)} needed: {mib(self.weights)} of weights, {self.children} x "
            f"{mib(self.buffers)} of context, {mib(self.processes)} for processes"
        )


def look_at_memory(facts: ModelFacts, settings: WorkerSettings) -> Finding:
    """Whether it is there."""
    need, available = Need.of(facts, settings), available_bytes()
    told = f"{need}; {mib(available)} available"
    advice = f"{_fitting(need, settings.n_ctx, facts.n_ctx_train, available)} makes it fit."
    if need.total > available:
        return Finding.judge("memory", told, problem=advice)
    tight = "Little is left for anything else; a lower --n-ctx or --slots would leave more."
    return Finding.judge("memory", told, warning=tight if need.total > _TIGHT * available else "")


def _fitting(need: Need, n_ctx: int, n_ctx_train: int, available: int) -> str:
    """The largest context that fits with everything else as it is."""
    room = (_TIGHT * available - need.weights - need.processes) / need.children - need.scratch
    fitting = min(int(n_ctx * room / max(1, need.cells)) // 256 * 256, n_ctx_train)
    if fitting >= 256:
        return f"--n-ctx {fitting}, or fewer --slots or --workers,"
    return "A smaller model, fewer --workers, or more memory"


def available_bytes() -> int:
    """What processes may still take: what the system has to give, cut by the control groups' limits."""
    return min([psutil.virtual_memory().available, *_left_in_groups(_CGROUPS, _memberships())])


def _memberships() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _left_in_groups(root: Path, memberships: str) -> Iterator[int]:
    for folder, limit_name, used_name in _groups(root, memberships):
        try:
            limit, used = ((folder / name).read_text().strip() for name in (limit_name, used_name))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit != "max":
            # File cache counts as used there, but is given up when it is needed.
            cache = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
            yield max(0, int(limit) - int(used) + cache)


def _groups(root: Path, memberships: str) -> Iterator[tuple[Path, str, str]]:
    """This process's groups and those around them, of version 2 and of version 1."""
    for line in memberships.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from ((folder, "memory.max", "memory.current") for folder in _around(root, path))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from ((folder, *names) for folder in _around(root / "memory", path))


def _around(root: Path, path: str) -> Iterator[Path]:
    inner = Path(path.strip("/"))
    yield from (root / folder for folder in (inner, *inner.parents))
