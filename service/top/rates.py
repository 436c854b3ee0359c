"""What ``top`` computes from ``/v1/status``: sums, and rates over several snapshots."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from service.client.api_client import ClientError, get_json
from tasks.contract.status import FinishedRequest, Status
from tasks.contract.tolerant import UnreadableError, read

#: Seconds that a rate looks back, and seconds that percentiles look back.
RATE_S = 5.0
WINDOW_S = 60.0
#: Number of rates kept for the line of rates.
MAX_RATES = 120


def fetch(url: str, api_key: str | None) -> Status:
    """The current status of the service at ``url``. Raises :class:`ClientError`."""
    raw = get_json(url, "/v1/status", api_key)
    try:
        return read(Status, raw)
    except UnreadableError as error:
        raise ClientError(f"{url} does not answer as this server does: {error}") from error


def fresh(status: Status) -> list[FinishedRequest]:
    """The requests that finished with an answer in the last :data:`WINDOW_S` seconds."""
    since = status.time - WINDOW_S
    return [each for each in status.recent if each.finished >= since and each.generated_tokens]


def e2e_ms(request: FinishedRequest) -> float:
    """Milliseconds from a request's acceptance to its end."""
    return (request.finished - request.created) * 1e3


def other_ms(request: FinishedRequest) -> float:
    """Milliseconds outside all phases: the time of dead attempts, and the time between phases."""
    return max(0.0, e2e_ms(request) - request.queue_ms - request.prefill_ms - request.decode_ms)


@dataclass(slots=True)
class History:
    """The latest snapshots, and the rates computed from them."""

    _seen: deque[Status] = field(default_factory=deque)
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RATES))

    def add(self, status: Status) -> None:
        """Add a snapshot; if the store was emptied, forget the older snapshots."""
        if self._seen and status.totals.generated_tokens < self._seen[-1].totals.generated_tokens:
            self._seen.clear()
        self._seen.append(status)
        while self._seen[0].time < status.time - RATE_S - 0.5:
            self._seen.popleft()
        if (rate := self.tokens_per_s) is not None:
            self.rates.append(rate)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second over the last :data:`RATE_S` seconds; ``None`` until there are two snapshots."""
        first, last = self._seen[0], self._seen[-1]
        seconds = last.time - first.time
        num_tokens = last.totals.generated_tokens - first.totals.generated_tokens
        return num_tokens / seconds if seconds > 0 else None
