"""This process's copy of the list of models and live children, so that a request needn't ask Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from service.errors import ApiError, bad_request
from tasks.contract.status import Child
from tasks.store.registry import Registry, ServedModel

#: Minimum seconds between two reads of Redis: for an unknown model name, and while no child is known. The
#: first worker may just have come.
LOOK_S, WAITING_LOOK_S = 0.5, 0.1
#: Seconds after which a snapshot is out of date.
STALE_S = 5.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What Redis said at ``read_at`` (monotonic seconds)."""

    models: dict[str, ServedModel] = field(default_factory=dict)
    children: tuple[Child, ...] = ()
    read_at: float = float("-inf")

    @property
    def is_fresh(self) -> bool:
        """Whether the snapshot is recent, which also means that Redis answers."""
        return time.monotonic() - self.read_at < STALE_S


class Catalog:
    """Holds the latest snapshot and answers questions from it.

    Args:
        registry: the source of the snapshots.
        served_name: a model that clients may ask for even before its first worker has come.
    """

    def __init__(self, registry: Registry, served_name: str | None) -> None:
        self._registry, self._served_name = registry, served_name
        self._reading = threading.Lock()
        self._fingerprints: dict[str, str | None] = {}
        self.snapshot = Snapshot()

    def refresh(self) -> None:
        """Read the registry. Raises ``redis.RedisError``."""
        models, children = self._registry.models(), tuple(self._registry.children())
        self.snapshot = Snapshot(models, children, time.monotonic())
        for model in {child.model for child in children}:
            self._fingerprints[model] = _fingerprint(child for child in children if child.model == model)

    @property
    def names(self) -> list[str]:
        """Every model that clients may ask for."""
        served = () if self._served_name is None else (self._served_name,)
        return sorted({*self.snapshot.models, *served})

    def resolve(self, name: str | None) -> str:
        """The model for a body's ``model`` field.

        Raises:
            ApiError: 404 for a name that no worker has served; 400 when no name is given and there isn't
                exactly one model.
            redis.RedisError: the name is unknown here and Redis can't be reached.
        """
        if name is None:
            return self._default()
        if name not in self.names:
            self._look_again(LOOK_S)
        if name not in self.names:
            known = ", ".join(self.names) or "none yet"
            message = f"The model {name[:100]!r} is not served here; known: {known}."
            raise ApiError(404, "model_not_found", message, "model")
        return name

    def has_children(self) -> bool:
        """Whether a worker holds a model.

        Raises:
            redis.RedisError: no child is known here and Redis can't be reached.
        """
        if not self.snapshot.children:
            self._look_again(WAITING_LOOK_S)
        return bool(self.snapshot.children)

    def n_ctx(self, model: str) -> int | None:
        """The largest context in tokens that a child offers one request; ``None`` if not known."""
        offered = [child.n_ctx for child in self.snapshot.children if child.model == model]
        known = self.snapshot.models.get(model)
        return max(offered, default=None if known is None else known.n_ctx)

    def fingerprint(self, model: str) -> str | None:
        """What the model's children compute with, in a word; while there is none, that of the last ones."""
        return self._fingerprints.get(model)

    def slots(self, model: str) -> int:
        """How many requests of a model can run at once."""
        return sum(child.slots for child in self.snapshot.children if child.model == model)

    def _default(self) -> str:
        if self._served_name is not None:
            return self._served_name
        if not self.names:
            self._look_again(LOOK_S)
        if len(self.names) != 1:
            known = ", ".join(self.names) or "none yet"
            raise bad_request(f"Set model to one of: {known}.", "model", "missing_required_parameter")
        return self.names[0]

    def _look_again(self, interval_s: float) -> None:
        with self._reading:
            if time.monotonic() - self.snapshot.read_at >= interval_s:
                self.refresh()


def _fingerprint(children: Iterable[Child]) -> str | None:
    """The children's fingerprint, or a new one if they have several; ``None`` if they tell none."""
    found = sorted({child.fingerprint for child in children} - {""})
    if len(found) > 1:
        return f"fp_{blake2b(' '.join(found).encode(), digest_size=8).hexdigest()}"
    return found[0] if found else None
