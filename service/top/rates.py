"""What ``top`` makes of ``/v1/status``: sums, and rates over several looks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from service.client.api_client import ClientError, get_json
from tasks.contract.status import FinishedRequest, Status
from tasks.contract.tolerant import UnreadableError, read

#: Seconds that a rate looks back, and that percentiles do.
RATE_S = 5.0
WINDOW_S = 60.0
#: Rates kept for the line of the last minutes.
MAX_RATES = 120


def fetch(url: str, api_key: str | None) -> Status:
    """The service at ``url`` now. Raises :class:`ClientError`."""
    raw = get_json(url, "/v1/status", api_key)
    try:
        return read(Status, raw)
    except UnreadableError as error:
        raise ClientError(f"{url} does not answer as this server does: {error}") from error


def fresh(status: Status) -> list[FinishedRequest]:
    """What finished, with an answer, in the last :data:`WINDOW_S` seconds."""
    since = status.time - WINDOW_S
    return [each for each in status.recent if each.finished >= since and each.generated_tokens]


def e2e_ms(request: FinishedRequest) -> float:
    """From acceptance to the end."""
    return (request.finished - request.created) * 1e3


def other_ms(request: FinishedRequest) -> float:
    """What is in none of the phases: what dead attempts cost, and the ways between the phases."""
    return max(0.0, e2e_ms(request) - request.queue_ms - request.prefill_ms - request.decode_ms)


@dataclass(slots=True)
class History:
    """The latest looks, and the rates that they made."""

    _seen: deque[Status] = field(default_factory=deque)
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RATES))

    def add(self, status: Status) -> None:
        """Take one more; a store that was emptied begins anew."""
        if self._seen and status.totals.generated_tokens < self._seen[-1].totals.generated_tokens:
            self._seen.clear()
        self._seen.append(status)
        while self._seen[0].time < status.time - RATE_S - 0.5:
            self._seen.popleft()
        if (rate := self.tokens_per_s) is not None:
            self.rates.append(rate)

    @property
    def tokens_per_s(self) -> float | None:
        """Over the last :data:`RATE_S` seconds; ``None`` until there are two looks."""
        first, last = self._seen[0], self._seen[-1]
        seconds = last.time - first.time
        num_tokens = last.totals.generated_tokens - first.totals.generated_tokens
        return num_tokens / seconds if seconds > 0 else None
