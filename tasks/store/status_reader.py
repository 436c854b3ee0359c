"""Reads the service's status: queues, running requests, children, totals, latest finished requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from tasks.contract import redis_names, versions
from tasks.contract.messages import End, State, Timings, Usage
from tasks.contract.redis_names import PRIORITY_LISTS
from tasks.contract.status import FinishedRequest, ModelStatus, Status, Totals
from tasks.contract.tolerant import read_or_warn
from tasks.store.registry import read_children, read_model
from tasks.store.requests import script_source

if TYPE_CHECKING:
    from redis import Redis

_REFUSED = "refused:"
_GENERATED = "generated_tokens"


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that is over, as ``remember`` in ``common.lua`` kept it."""

    id: str
    model: str
    child: str | None
    created: float
    finished: float
    end: End

    def told(self, *, with_id: bool) -> FinishedRequest:
        """Everything but the texts of the prompt and of an error, which may quote the prompt."""
        usage, timings = self.end.usage or Usage(0, 0), self.end.timings or Timings()
        return FinishedRequest(
            id=self.id if with_id else _hidden(self.id),
            model=self.model,
            state=self.end.state,
            error=None if self.end.error is None else self.end.error.code.value,
            child=self.child,
            attempts=timings.attempts if self.child is not None else 0,
            created=self.created,
            finished=self.finished,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=timings.cache_n,
            generated_tokens=usage.completion_tokens,
            queue_ms=timings.queue_ms,
            prefill_ms=timings.prompt_ms,
            decode_ms=timings.predicted_ms,
            ttft_ms=timings.ttft_ms,
            itl_ms=timings.itl_ms,
            itl_p95_ms=timings.itl_p95_ms,
        )


class StatusReader:
    """Reads a :class:`Status` in one round trip; ``cap`` requests of a model may wait."""

    def __init__(self, redis: Redis, cap: int) -> None:
        self._cap = cap
        self._status = redis.register_script(script_source("status"))

    def read(self, viewer: str = "") -> Status:
        """The status now. Raises ``redis.RedisError``.

        The owner ``viewer`` isn't told the ids of other owners' requests; an empty ``viewer`` is told all.
        """
        reply = cast("list[Any]", self._status(args=list(PRIORITY_LISTS)))
        time, models, waiting, children, running, totals, recent, owners = reply
        by_model = Counter(_text(model) for model, _ in running)
        by_child = Counter(_text(child) for _, child in running)
        served = zip(map(read_model, models[1::2]), waiting, strict=True)
        known = [
            ModelStatus(model.name, model.n_ctx, num, self._cap, by_model[model.name])
            for model, num in served
            if model
        ]
        ended = (read_or_warn(Finished, raw, "finished request", versions.EVENT) for raw in recent)
        told = (
            request.told(with_id=viewer == "" or owner.decode() in ("", viewer))
            for request, owner in zip(ended, owners, strict=True)
            if request
        )
        return Status(
            time=float(time),
            models=tuple(sorted(known, key=lambda model: model.id)),
            children=tuple(replace(child, busy=by_child[child.id]) for child in read_children(children)),
            totals=_totals(zip(totals[::2], totals[1::2], strict=True)),
            recent=tuple(told),
        )


class Refusals:
    """Counts refused requests, and adds a second's counts to the totals at once: refusing must be cheap."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._counts: Counter[str] = Counter()

    def add(self, code: str) -> None:
        """Count one refused request."""
        self._counts[code] += 1

    def flush(self) -> None:
        """Add the new counts to the totals. Raises ``redis.RedisError``, and then keeps the counts."""
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


def _hidden(request_id: str) -> str:
    """A name that is always the same for the request, and from which its id can't be found."""
    return f"hidden-{sha256(request_id.encode()).hexdigest()[:12]}"


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode()


def _totals(pairs: Iterable[tuple[bytes, bytes]]) -> Totals:
    counts = {name.decode(): int(count) for name, count in pairs}
    refused = {k.removeprefix(_REFUSED): n for k, n in counts.items() if k.startswith(_REFUSED)}
    requests = {state.value: counts[state] for state in State if state in counts}
    return Totals(requests, refused, counts.get(_GENERATED, 0))
