"""What ``/v1/status`` says, as ``top`` needs it; rates and percentiles from several of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from service.cli.client import ClientError, get_json

#: Seconds that a rate looks back, and that percentiles do.
RATE_S = 5.0
WINDOW_S = 60.0
#: Rates kept for the line of the last minutes.
MAX_RATES = 120


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A worker child and its slots."""

    id: str
    model: str
    slots: int
    busy: int


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A finished request. Times in milliseconds; ``other_ms`` is what is in none of the phases."""

    id: str
    state: str
    num_tokens: int
    attempts: int
    child: str
    finished: float
    e2e_ms: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float
    itl_ms: float
    itl_p95_ms: float

    @property
    def other_ms(self) -> float:
        """What dead attempts cost, and the ways between the phases."""
        return max(0.0, self.e2e_ms - self.queue_ms - self.prefill_ms - self.decode_ms)

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        """From its JSON."""
        same = ("id", "state", "attempts", "finished", "queue_ms", "prefill_ms", "decode_ms", "ttft_ms")
        return cls(
            **{name: raw[name] for name in (*same, "itl_ms", "itl_p95_ms")},
            num_tokens=raw["generated_tokens"],
            child=raw["child"] or "",
            e2e_ms=(raw["finished"] - raw["created"]) * 1e3,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The service at ``time``, the store's clock in Unix seconds."""

    time: float
    waiting: int
    cap: int
    running: int
    num_tokens: int
    num_refused: int
    num_finished: int
    children: tuple[ChildRow, ...]
    recent: tuple[RequestRow, ...]

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        """From its JSON. Raises ``LookupError`` or ``TypeError`` on foreign JSON."""
        models, totals = raw["models"], raw["totals"]
        children = (ChildRow(c["id"], c["model"], c["slots"], c["busy"]) for c in raw["children"])
        return cls(
            time=raw["time"],
            waiting=sum(model["waiting"] for model in models),
            cap=sum(model["cap"] for model in models),
            running=sum(model["running"] for model in models),
            num_tokens=totals["generated_tokens"],
            num_refused=sum(totals["refused"].values()),
            num_finished=sum(totals["requests"].values()),
            children=tuple(children),
            recent=tuple(RequestRow.of(each) for each in raw["recent"]),
        )

    @property
    def fresh(self) -> list[RequestRow]:
        """What finished, with an answer, in the last :data:`WINDOW_S` seconds."""
        return [each for each in self.recent if each.finished >= self.time - WINDOW_S and each.num_tokens]


def fetch(url: str, api_key: str | None) -> Snapshot:
    """The service at ``url`` now. Raises :class:`ClientError`."""
    raw = get_json(url, "/v1/status", api_key)
    try:
        return Snapshot.of(raw)
    except (LookupError, TypeError, AttributeError) as error:
        raise ClientError(f"{url} does not answer as this server does: no {error} in its status") from error


@dataclass(slots=True)
class History:
    """The latest snapshots, and the rates that they made."""

    _seen: deque[Snapshot] = field(default_factory=deque)
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RATES))

    def add(self, snapshot: Snapshot) -> None:
        """Take one more; a store that was emptied begins anew."""
        if self._seen and snapshot.num_tokens < self._seen[-1].num_tokens:
            self._seen.clear()
        self._seen.append(snapshot)
        while self._seen[0].time < snapshot.time - RATE_S - 0.5:
            self._seen.popleft()
        if (rate := self.tokens_per_s) is not None:
            self.rates.append(rate)

    @property
    def tokens_per_s(self) -> float | None:
        """Over the last :data:`RATE_S` seconds; ``None`` until there are two snapshots."""
        first, last = self._seen[0], self._seen[-1]
        seconds = last.time - first.time
        return (last.num_tokens - first.num_tokens) / seconds if seconds > 0 else None


def percentile(values: Iterable[float], share: float) -> float | None:
    """The nearest-rank percentile of what is above 0; ``None`` of nothing."""
    found = sorted(value for value in values if value > 0)
    return found[max(0, math.ceil(share * len(found)) - 1)] if found else None
