"""The whole service on one machine, as a context manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.supervisor.errors import ServiceError
from service.supervisor.follow import Follower
from service.supervisor.guard.keeper_link import KeeperLink
from service.supervisor.programs.part import Part
from service.supervisor.programs.plan import Plan, parts
from service.supervisor.programs.probe import require_free
from service.supervisor.signals import Signals
from service.supervisor.state import locked
from service.supervisor.supervisor import Supervisor

Show = Callable[[str, str], None]


@contextmanager
def running(
    plan: Plan, signals: Signals, tell: Callable[[str], None], show: Show | None = None
) -> Iterator[Supervisor]:
    """Run everything in ``plan`` inside the context, and end it all afterwards.

    ``tell`` gets texts about what is happening; ``show``, if given, gets each line that a part logs.

    Raises:
        ServiceError: another service uses the state, or a part can't start or go on.
    """
    with locked(plan.state, tell) as lock:
        for address in plan.addresses:  # only now: what a killed service left has ended
            require_free(*address)
        chosen = _prepared(plan)
        keeper = KeeperLink(lock)
        try:
            follower = None if show is None else Follower([part.log for part in chosen], show)
            with Supervisor(chosen, signals, keeper, tell, follower) as supervisor:
                yield supervisor
        finally:
            keeper.close()


def _prepared(plan: Plan) -> list[Part]:
    try:
        chosen = parts(plan)
        for part in chosen:
            _rotate(part)
    except OSError as error:
        raise ServiceError(f"Can't write to the state folder {plan.state}: {error.strerror}.") from error
    return chosen


def _rotate(part: Part) -> None:
    """Each start of the service has its own log; the log before it is kept."""
    if part.log.exists():
        part.log.replace(part.log.with_suffix(".log.1"))
