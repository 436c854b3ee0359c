"""Starts parts in order, keeps them running, ends them in reverse order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from service.supervisor.backoff import Backoff
from service.supervisor.errors import HopelessError, ServiceError
from service.supervisor.follow import Follower
from service.supervisor.guard.keeper_link import PAUSE_S, KeeperLink
from service.supervisor.part_process import Child
from service.supervisor.programs.part import Part
from service.supervisor.signals import Signals

#: Seconds between two checks: of a part that starts, of logs that are followed, and when all is well.
_POLL_S, _FOLLOW_S, _IDLE_S = 0.05, 0.2, 60.0


class Supervisor:
    """A context manager: the parts run inside it.

    Entering returns when all parts are ready, or when a signal asks to stop.

    Args:
        parts: in the order to start them.
        signals: open; a ``num_stops`` of one asks for an orderly end, of two for an end at once.
        keeper: ends the parts if this process is killed.
        tell: gets texts about what is happening, for a person.
        follower: shows what the parts log, if that is wanted.

    Raises:
        ServiceError: a part can't start, or died too often.
        HopelessError: a part said that it can't go on.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        signals: Signals,
        keeper: KeeperLink,
        tell: Callable[[str], None],
        follower: Follower | None = None,
    ) -> None:
        self._parts = parts
        self._signals = signals
        self._keeper = keeper
        self._tell = tell
        self._follower = follower
        self._children: dict[str, Child] = {}
        self._backoffs = {part.name: Backoff() for part in parts}
        self._due: dict[str, float] = {}

    def __enter__(self) -> Self:
        try:
            for part in self._parts:
                self._tell(part.told)
                self._start(part)
                self._wait_until_ready(part)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def watch(self) -> None:
        """Restart parts that die, until a signal asks to stop."""
        while not self._signals.num_stops:
            self._plan_restarts()
            self._restart_due()
            self._revive_keeper()
            self._signals.wait(self._until_next())
            self._follow()

    def _start(self, part: Part) -> None:
        try:
            self._children[part.name] = Child(part, self._keeper)
        except OSError as error:
            raise ServiceError(f"Can't start the {part.name}: {error}.") from error

    def _wait_until_ready(self, part: Part) -> None:
        while not (self._signals.num_stops or part.is_ready()):
            for child in self._children.values():
                if not child.is_running:
                    _refuse_if_hopeless(child)
                    raise ServiceError(f"The {child.death()} while starting:\n{child.last_lines()}")
            self._revive_keeper()
            self._signals.wait(_POLL_S)
            self._follow()

    def _plan_restarts(self) -> None:
        now = time.monotonic()
        for name, child in self._children.items():
            if child.is_running or name in self._due:
                continue
            child.kill()  # processes that it left behind may hold its port or memory
            _refuse_if_hopeless(child)
            delay = self._backoffs[name].delay_after_death(now)
            if delay is None:
                raise ServiceError(f"The {child.death()} too often:\n{child.last_lines()}")
            self._tell(f"The {child.death()}; starting it again.")
            self._due[name] = now + delay

    def _restart_due(self) -> None:
        for part in self._parts:
            if part.name in self._due and self._due[part.name] <= time.monotonic():
                del self._due[part.name]
                self._start(part)

    def _until_next(self) -> float:
        now = time.monotonic()
        idle_s = _IDLE_S if self._follower is None else _FOLLOW_S
        keeper_s = idle_s if self._keeper.is_alive else PAUSE_S
        return min([idle_s, keeper_s, *(due - now for due in self._due.values())])

    def _revive_keeper(self) -> None:
        if self._keeper.revive():
            self._tell("The keeper, which ends all parts if this process is killed, ended; started it again.")

    def _follow(self) -> None:
        if self._follower is not None:
            self._follower.poll()

    def _stop(self) -> None:
        try:
            for part in reversed(self._parts):
                if part.name in self._children:
                    self._children[part.name].stop(self._signals)
                self._follow()
        finally:
            for child in self._children.values():
                child.kill()


def _refuse_if_hopeless(child: Child) -> None:
    if child.is_hopeless:
        raise HopelessError(child.last_words())
