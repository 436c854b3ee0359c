"""The three parts of the service, as programs to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.supervisor.programs import valkey
from service.supervisor.programs.part import Part
from service.supervisor.programs.probe import Address, answers_200
from service.supervisor.programs.worker_words import words_of

#: Seconds that a part gets to end by itself between the end of its drain and SIGKILL.
_MARGIN_S = 10.0

API_COMMAND = (
    sys.executable,
    "-m",
    "gunicorn",
    "-c",
    "python:service.server.gunicorn_config",
    "service.server.wsgi:build()",
)
#: The parts' working directory: Celery and gunicorn import from there first, and the user's directory may
#: have another folder that is called ``service`` or ``tasks``.
PACKAGES = Path(__file__).resolve().parents[3]


def worker_command(name: str, log_level: str) -> tuple[str, ...]:
    """The worker's command; Celery needs a different ``name`` for each worker of a host."""
    celery = (sys.executable, "-m", "celery", "--quiet", "-A", "tasks")  # no banner in the log
    command = (*celery, "worker", "-n", f"{name}@%h", "-l", log_level)
    # Workers have nothing to tell each other, and would wait a second for answers at every reconnect.
    return (*command, "--without-mingle", "--without-gossip")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is decided before anything starts.

    ``env`` holds the settings as variables. Without ``redis_url`` a Valkey is embedded, which may take
    ``queue_memory`` MiB (0 chooses). ``addresses`` must be free.
    """

    state: Path
    env: Mapping[str, str]
    url: str
    model: str
    drain_timeout_s: float
    redis_url: str | None = None
    queue_memory: int = 0
    addresses: tuple[Address, ...] = ()


def parts(plan: Plan) -> list[Part]:
    """The parts in the order to start them. Raises ``ServiceError`` if no Valkey can be embedded."""
    embedded, url = ([], plan.redis_url) if plan.redis_url else _valkey(plan)
    env = {**plan.env, "REDIS_URL": url, "INFERENCE_REDIS_URL": url, "PYTHONUNBUFFERED": "1"}
    return [*embedded, _worker(plan, env), _api(plan, env)]


def log_path(state: Path, name: str) -> Path:
    """The path of a part's log; the log before it is kept beside it."""
    folder = state / "logs"
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.log"


def _valkey(plan: Plan) -> tuple[list[Part], str]:
    conf, socket = valkey.configure(plan.state, valkey.memory_limit(plan.queue_memory))
    url = valkey.url_of(socket)
    part = Part(
        name="Valkey",
        command=(str(valkey.binary()), str(conf)),
        env=os.environ,
        cwd=plan.state,
        log=log_path(plan.state, "valkey"),
        stop_timeout_s=_MARGIN_S,
        told=_told(plan.state, socket),
        is_ready=valkey.answers(url),
    )
    return [part], url


def _told(state: Path, socket: Path) -> str:
    if socket.is_relative_to(state):
        return "Starting Valkey"
    return f"Starting Valkey on {socket}, since {state} can't have a Unix socket (too long a path, perhaps)"


def _worker(plan: Plan, env: Mapping[str, str]) -> Part:
    name = f"serve-{os.getpid()}"
    return Part(
        name="worker",
        command=worker_command(name, env.get("INFERENCE_LOG_LEVEL", "info")),
        env=env,
        cwd=PACKAGES,
        log=log_path(plan.state, "worker"),
        stop_timeout_s=plan.drain_timeout_s + _MARGIN_S,
        told=f"Loading {plan.model}",
        last_words=words_of(env["INFERENCE_REDIS_URL"], name),
    )


def _api(plan: Plan, env: Mapping[str, str]) -> Part:
    return Part(
        name="API",
        command=API_COMMAND,
        env=env,
        cwd=PACKAGES,
        log=log_path(plan.state, "api"),
        stop_timeout_s=plan.drain_timeout_s + _MARGIN_S,
        told="Starting the API",
        is_ready=answers_200(f"{plan.url}/readyz"),
    )
