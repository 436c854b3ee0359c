"""How much memory a worker host needs, and how much there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from tasks.settings import WorkerSettings

#: Bytes that a child takes besides its context, and that all other processes take together; measured.
CHILD_BYTES = 40 << 20
OTHERS_BYTES = 220 << 20
#: Rows of activations alive at once in a layer, as wide as the embedding and as the feed-forward.
_EMBD_ROWS, _FF_ROWS = 6, 3
_FLOAT_BYTES = 4
_CGROUPS = Path("/sys/fs/cgroup")


class Facts(Protocol):
    """The figures of a model's header that decide how much memory it needs; sizes in bytes."""

    @property
    def size_bytes(self) -> int:
        """Size of the file."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Size of one token's cells in the KV cache."""

    @property
    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""

    @property
    def n_embd(self) -> int:
        """Width of the embedding."""

    @property
    def n_ff(self) -> int:
        """Width of the feed-forward."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """:class:`Facts` from the result of :meth:`tasks.engine.llama.model.Model.describe`."""

    size_bytes: int
    kv_bytes_per_token: int
    n_vocab: int
    n_embd: int
    n_ff: int

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Pick the facts out of a model's description."""
        return cls(**{name: int(told[name]) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a worker host needs, in bytes.

    ``weights`` count once, ``cells`` and ``scratch`` once for each child. ``processes`` is what the processes
    take besides.
    """

    weights: int
    cells: int
    scratch: int
    children: int
    processes: int

    @classmethod
    def of(cls, facts: Facts, settings: WorkerSettings) -> Need:
        """What ``settings`` need. A GPU's memory is not known here: everything counts as the machine's."""
        shape, n_batch = settings.shape, settings.n_batch
        cells = shape.slots * settings.n_ctx * facts.kv_bytes_per_token
        activations = n_batch * (_EMBD_ROWS * facts.n_embd + _FF_ROWS * facts.n_ff) * _FLOAT_BYTES
        logits = shape.slots * facts.n_vocab * _FLOAT_BYTES
        processes = shape.workers * CHILD_BYTES + OTHERS_BYTES
        return cls(facts.size_bytes, cells, activations + logits, shape.workers, processes)

    @property
    def buffers(self) -> int:
        """Bytes of one child's context."""
        return self.cells + self.scratch

    @property
    def total(self) -> int:
        """Bytes needed altogether."""
        return self.weights + self.children * self.buffers + self.processes

    def __str__(self) -> str:
        return (
            f"{mib(self.total)} needed: {mib(self.weights)} of weights, {self.children} x "
            f"{mib(self.buffers)} of context, {mib(self.processes)} for processes"
        )


def available_bytes() -> int:
    """Bytes that processes may still take: the system's available memory, within the cgroups' limits."""
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
            # The group counts the file cache as used, but the kernel frees it when memory is needed.
            cache = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
            yield max(0, int(limit) - int(used) + cache)


def _groups(root: Path, memberships: str) -> Iterator[tuple[Path, str, str]]:
    """This process's control groups and their parents, of cgroup versions 2 and 1."""
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


def mib(num_bytes: float) -> str:
    """Bytes as text in MiB."""
    return f"{num_bytes / 2**20:,.0f} MiB"
