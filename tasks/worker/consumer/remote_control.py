"""Celery's remote commands, as ``celery control`` and Flower send them.

Revoking cancels, whether a request waits, runs here or runs elsewhere. What would resize the pool, hold
messages back or end children, which run other requests too, is refused with what to do instead. Importing
this module replaces Celery's commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery.worker import control
from celery.worker import state as worker_state
from celery.worker.control import control_command
from redis import RedisError

from tasks.contract.messages import State
from tasks.store.troubles import Trouble
from tasks.worker.consumer.cancellable import REVOKED

Reply = dict[str, Any]

_RESIZE = "the pool has a fixed size: restart the worker with other --workers or --slots"
_RATE = "requests have no rate limit: lower --queue-limit, or limit the rate before the API"
_TIME = "Celery's time limits would end a child, which runs other requests too: set --request-timeout"

_revoke, _by_stamps, _add_consumer = (
    control.revoke,
    control.revoke_by_stamped_headers,
    control.add_consumer,
)


@control_command(name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **_: Any) -> Reply:
    """Cancel requests by id, wherever they are."""
    ids = [task_id] if isinstance(task_id, str) else list(task_id or ())
    try:
        before = {each: state.app.request_store.cancel(each, message=REVOKED) for each in ids}
    except RedisError as error:
        return {"error": f"not all are cancelled: {Trouble.of(error).text}"}
    unknown = [each for each, found in before.items() if found is None]
    if unknown and len(unknown) == len(ids):
        reply = _revoke(state, unknown, terminate=terminate, signal=signal)
        return {"ok": f"unknown requests: {reply}"}
    if unknown:
        _revoke(state, unknown, terminate=terminate, signal=signal)
    return {"ok": "; ".join(f"{each}: {_told(found)}" for each, found in before.items())}


@control_command(
    name="terminate",
    variadic="task_id",
    args=[("signal", str)],
    signature="<signal> [id1 [id2 [... [idN]]]]",
)
def terminate(state: Any, signal: Any, task_id: Any, **_: Any) -> Reply:
    """Cancel requests by id; no signal is sent, since a child runs other requests too."""
    reply: Reply = revoke(state, task_id, terminate=True, signal=signal)
    return reply


@control_command(
    name="revoke_by_stamped_headers",
    variadic="headers",
    signature="[key1=value1 [key2=value2 [... [keyN=valueN]]]]",
)
def revoke_by_stamped_headers(state: Any, headers: Any, **_: Any) -> Reply:
    """Cancel the requests with these stamps: those that this worker holds, and others when it takes them."""
    if not isinstance(headers, Mapping):
        headers = dict(each.split("=", 1) for each in headers)
    reply: Reply = _by_stamps(state, headers, terminate=False)
    held = [each for each in _held() if _has_stamp(each.stamps, headers)]
    for request in held:
        request.terminate(state.consumer.pool)
    return {"ok": f"{reply.get('ok')}; cancelled: {[each.id for each in held]}"}


@control_command(name="add_consumer", args=[("queue", str)], signature="<queue>")
def add_consumer(state: Any, queue: str, **options: Any) -> Reply:
    """Take messages of this worker's model again."""
    own = state.app.conf.task_default_queue
    if queue != own:
        return {"error": f"a worker serves its own model's queue, {own}: start another worker with --model"}
    return dict(_add_consumer(state, queue, **options))


def _refuse(name: str, why: str, **how: Any) -> None:
    @control_command(name=name, help=f"Refused: {why}.", **how)
    def refuse(state: Any, **_: Any) -> Reply:
        return {"error": why}


for _name in ("pool_grow", "pool_shrink"):
    _refuse(_name, _RESIZE, args=[("n", int)], signature="[N=1]")
_refuse("autoscale", _RESIZE, args=[("max", int), ("min", int)], signature="[max [min]]")
_refuse("pool_restart", _RESIZE)
_refuse("rate_limit", _RATE, args=[("task_name", str), ("rate_limit", str)], signature="<task_name> <rate>")
_refuse(
    "time_limit",
    _TIME,
    args=[("task_name", str), ("soft", float), ("hard", float)],
    signature="<task_name> <soft_secs> [hard_secs]",
)


def _told(before: State | None) -> str:
    if before is None:
        return "unknown"
    return f"is over ({before})" if before.is_final else "cancelled"


def _held() -> Iterable[Any]:
    return set(worker_state.reserved_requests) | set(worker_state.active_requests)


def _has_stamp(stamps: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(set(_listed(stamps.get(name))) & set(_listed(values)) for name, values in wanted.items())


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]
