"""One look at everything: queues, running requests, children, totals and what finished last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tasks.contract import redis_names, versions
from tasks.contract.messages import End, State
from tasks.contract.tolerant import read_or_warn
from tasks.queue.submit import PRIORITY_LISTS
from tasks.store.registry import Child, ServedModel, read_children, read_model
from tasks.store.requests import script_source

if TYPE_CHECKING:
    from redis import Redis

_REFUSED = "refused:"
_GENERATED = "generated_tokens"


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """A model's requests: those that wait, and those that are being generated."""

    model: ServedModel
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class ChildLoad:
    """A child, and how many requests it generates just now."""

    child: Child
    busy: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the store began: finished requests by state, refused ones by reason, tokens generated."""

    requests: Mapping[State, int]
    refused: Mapping[str, int]
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that is over. Times are Redis's clock in Unix seconds; ``child`` generated it last."""

    id: str
    model: str
    child: str | None
    created: float
    finished: float
    end: End


@dataclass(frozen=True, slots=True)
class Status:
    """All of it at ``time``, Redis's clock in Unix seconds; ``recent`` has the newest first."""

    time: float
    models: tuple[ModelLoad, ...]
    children: tuple[ChildLoad, ...]
    totals: Totals
    recent: tuple[Finished, ...]


class StatusReader:
    """Reads a :class:`Status` in one round trip."""

    def __init__(self, redis: Redis) -> None:
        self._status = redis.register_script(script_source("status"))

    def read(self) -> Status:
        """What there is now. Raises ``redis.RedisError``."""
        reply = cast("list[Any]", self._status(args=list(PRIORITY_LISTS)))
        time, models, waiting, children, running, totals, recent = reply
        by_model = Counter(_text(model) for model, _ in running)
        by_child = Counter(_text(child) for _, child in running)
        served = zip(map(read_model, models[1::2]), waiting, strict=True)
        loads = [ModelLoad(model, num, by_model[model.name]) for model, num in served if model]
        ended = (read_or_warn(Finished, raw, "finished request", versions.EVENT) for raw in recent)
        return Status(
            time=float(time),
            models=tuple(sorted(loads, key=lambda load: load.model.name)),
            children=tuple(ChildLoad(child, by_child[child.id]) for child in read_children(children)),
            totals=_totals(zip(totals[::2], totals[1::2], strict=True)),
            recent=tuple(request for request in ended if request),
        )


class Refusals:
    """Counts refused requests for the totals, a second's in one command: refusing has to cost little."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._counts: Counter[str] = Counter()

    def add(self, code: str) -> None:
        """Count one."""
        self._counts[code] += 1

    def flush(self) -> None:
        """Add up what was counted since the last time. Raises ``redis.RedisError``, and keeps the counts."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            with self._redis.pipeline() as pipe:
                for code, count in counts.items():
                    pipe.hincrby(redis_names.TOTALS, _REFUSED + code, count)
                pipe.execute()
        except Exception:
            self._counts.update(counts)
            raise


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode()


def _totals(pairs: Iterable[tuple[bytes, bytes]]) -> Totals:
    counts = {name.decode(): int(count) for name, count in pairs}
    refused = {k.removeprefix(_REFUSED): n for k, n in counts.items() if k.startswith(_REFUSED)}
    requests = {state: counts[state] for state in State if state in counts}
    return Totals(requests, refused, counts.get(_GENERATED, 0))
