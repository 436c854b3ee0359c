"""The Celery application for workers (``celery -A tasks worker``), ``inspect``, Flower and other publishers.

The API does not use it: :mod:`tasks.queue.submit` writes the messages itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import Celery, concurrency, signals
from celery.app.amqp import AMQP

from tasks.contract.messages import queue_name
from tasks.engine.costs.shared_note import SharedNote
from tasks.queue.leases import UNACKED_OPTIONS
from tasks.queue.transport import Connection
from tasks.settings import BrokerSettings, WorkerSettings, worker_settings
from tasks.store.board import Board
from tasks.store.connect import CONNECT_TIMEOUT_S, CONSUMER_HEALTH_CHECK_S, TIMEOUTS, Broker, connect
from tasks.store.foreign_keys import foreign_keys
from tasks.store.requests import RequestStore
from tasks.telemetry import logs
from tasks.telemetry.metric_names import WORKER_LAYOUT
from tasks.telemetry.tally import SharedTallies
from tasks.worker.ending.refusal import Refusal
from tasks.worker.ending.stages import Stages
from tasks.worker.liveness.pulse import Pulses

if TYPE_CHECKING:
    from tasks.memory_need import Need
    from tasks.worker.ending.model_file import ModelFile

#: Seconds between two searches for requests of dead workers.
SWEEP_INTERVAL_S = 1.0
#: Most bytes of the parent's troubles that its children tell.
MAX_TOLD = 2000


class _Amqp(AMQP):  # type: ignore[misc]
    def Connection(self, *args: Any, **kwargs: Any) -> Connection:  # noqa: N802 - Celery's name
        connection = Connection(*args, **kwargs)
        connection.board = self.app.board
        return connection


class App(Celery):  # type: ignore[misc]
    """A Celery application that knows the settings it was built from, and what a worker's children share."""

    amqp_cls = _Amqp

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__("tasks", set_as_current=isinstance(settings, WorkerSettings))
        self.settings = settings
        #: What Redis refuses to the process that has this application.
        self.board = Board(self._foreign_keys, self._tell_children)
        #: The board's text, for the children, which can tell it to everybody.
        self.parents_troubles = SharedNote()
        if isinstance(settings, WorkerSettings):
            self.tallies = SharedTallies(WORKER_LAYOUT)
            self.step_costs = SharedNote()
            self.stages = Stages()
            self.pulses = Pulses()
            self.refusal = Refusal()
            #: The model file that the parent loaded, and the memory that the worker needs; set once known.
            self.model_file: ModelFile | None = None
            self.memory_need: Need | None = None

    @cached_property
    def request_store(self) -> RequestStore:
        """The requests' records, for the process that has this application; its children have their own."""
        return RequestStore(connect(self.settings.redis_url), self.settings.result_ttl)

    def _foreign_keys(self) -> list[str]:
        return foreign_keys(self.request_store.redis)

    def _tell_children(self, text: str) -> None:
        self.parents_troubles.write(text.encode()[:MAX_TOLD])


def create_app(settings: BrokerSettings) -> App:
    """Build an application that publishes and, with ``WorkerSettings``, also consumes.

    Raises ``ValueError`` if a worker has no model.
    """
    app = App(settings)
    broker = Broker.at(settings.redis_url)
    app.conf.update(
        broker_url=broker.url,
        broker_transport_options={**_transport_options(settings), **broker.options},
        **_shared_options(),
    )
    if isinstance(settings, WorkerSettings):
        app.conf.update(_worker_options(settings))
        _add_steps(app)
        _set_up_logs(settings)
    return app


def _add_steps(app: App) -> None:
    # Imported here and not at the top: these modules import Celery's worker, which the API doesn't need.
    import tasks.worker.consumer.remote_control  # noqa: F401 - replaces Celery's commands
    from tasks.telemetry.exporter import Exporter
    from tasks.worker.drain import Drain
    from tasks.worker.lease_renewal import Leases

    # Celery's own pool would restart crashing children for ever.
    concurrency.ALIASES["processes"] = "tasks.worker.pool.guarded_pool:GuardedTaskPool"
    app.steps["worker"].update((Leases, Drain, Exporter))


def _set_up_logs(settings: WorkerSettings) -> None:
    """Replace Celery's log setup with ours; its ``--loglevel`` applies if the settings name no level."""
    is_set = "log_level" in settings.model_fields_set

    def set_up(loglevel: int | None = None, **_: Any) -> None:
        logs.configure(settings, None if is_set else loglevel)

    signals.setup_logging.connect(set_up, weak=False, dispatch_uid="tasks.telemetry.logs")


def _transport_options(settings: BrokerSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        **UNACKED_OPTIONS,
        "queue_limit": settings.queue_limit,
        **TIMEOUTS,
        "health_check_interval": CONSUMER_HEALTH_CHECK_S,
        # Look for overdue leases on every sweep, not on every tenth.
        "unacked_restore_interval": SWEEP_INTERVAL_S,
        "unacked_restore_throttle": 1,
    }
    if isinstance(settings, WorkerSettings):
        options["visibility_timeout"] = settings.lease
    return options


def _shared_options() -> dict[str, Any]:
    return {
        # Anyone who can write to the broker could run code in a worker that accepts pickle.
        "task_serializer": "json",
        "accept_content": ["json"],
        # Results are streamed and kept by tasks.store.requests.
        "result_backend": None,
        "task_ignore_result": True,
        "broker_connection_timeout": CONNECT_TIMEOUT_S,
    }


def _worker_options(settings: WorkerSettings) -> dict[str, Any]:
    if settings.served_name is None:
        raise ValueError("a worker needs a model to serve: set --model or INFERENCE_MODEL to a GGUF file")
    shape = settings.shape
    return {
        "imports": ("tasks.worker.entry",),
        "task_default_queue": queue_name(settings.served_name),
        **_acknowledgement(),
        "worker_consumer": "tasks.worker.consumer.waiting_consumer:Consumer",
        "worker_pool": "tasks.worker.pool.slot_pool:TaskPool",
        "worker_concurrency": shape.workers * shape.slots,
        # Hold no more messages than there are slots. Tasks still running from before a reconnect count.
        # Celery's own reduction for such tasks is off, because it is undone only task by task.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_enable_prefetch_count_reduction": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Otherwise Celery would kill a child that takes long to make its context, again and again.
        "worker_proc_alive_timeout": 600,
        # Celery's soft shutdown is off, and tasks.worker.drain drains instead. Celery's sleeps in the
        # signal handler, always for the whole time, so leases run out.
        "worker_soft_shutdown_timeout": 0.0,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "worker_redirect_stdouts": False,
    }


def _acknowledgement() -> dict[str, Any]:
    return {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        # A task that fails could not read its message, which is then kept for people. Requests don't fail so.
        "task_acks_on_failure_or_timeout": False,
        # Celery would hold limited messages without a bound, and without a lease.
        "worker_disable_rate_limits": True,
    }


def __getattr__(name: str) -> Any:
    # Built only when Celery asks for it, so that a process can import create_app without being a worker.
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = app = create_app(worker_settings())
    return app
