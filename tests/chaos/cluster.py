"""A cluster of real processes: one Valkey, workers and APIs, each reaching Valkey through its own proxy."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from redis import Redis, RedisError

from service.supervisor.guard.keeper_link import KeeperLink
from service.supervisor.programs.probe import answers_200
from service.supervisor.programs.valkey import binary
from tasks.contract import redis_names
from tasks.contract.messages import queue_name
from tasks.queue.leases import UNACKED_OPTIONS
from tasks.store.registry import Registry
from tasks.store.requests import RequestStore
from tests.chaos.process import Process
from tests.chaos.proxy import Proxy
from tests.e2e.serving import COMMAND, clean_environment
from tests.ports import free_port
from tests.waiting import wait_until

#: Children of a worker host, and slots of a child.
WORKERS, SLOTS = 2, 4


@dataclass(frozen=True)
class Sizes:
    """The settings that the processes start with; times in seconds."""

    workers: int = 2
    apis: int = 2
    lease: float = 4
    drain: float = 1
    max_attempts: int = 3
    result_ttl: int = 3600
    n_ctx: int = 512


@dataclass(frozen=True)
class Checkout:
    """The code that a process runs: its folder (``None``: this process's folder), and needed variables."""

    folder: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Running:
    """A claimed request: its child, and the number of its attempt."""

    id: str
    child: str
    attempt: int


class Cluster:
    """``valkey`` and, by name, ``workers``, ``apis`` and ``proxies``. Programs reach Valkey by their proxies.

    ``checkouts``: the code of a worker or an API, by its name; default: this process's code.
    """

    def __init__(
        self, root: Path, model: Path, sizes: Sizes, checkouts: Mapping[str, Checkout] | None = None
    ) -> None:
        self.root, self.model, self.sizes = root, model, sizes
        self._checkouts = checkouts or {}
        self._lock = (root / "lock").open("w")
        self._keeper = KeeperLink(self._lock.fileno())
        self.valkey_port, password = free_port(), secrets.token_hex(8)
        self._credentials = f"redis://:{password}@"
        self.redis_url = self.url_by("127.0.0.1", self.valkey_port)
        self.redis = self._connect()
        self.store, self.registry = RequestStore(self.redis), Registry(self.redis)
        self.valkey = self._valkey(password)
        self.proxies: dict[str, Proxy] = {}
        self.workers = {name: self._worker(name) for name in _names("w", sizes.workers)}
        self.ports = {name: free_port() for name in _names("a", sizes.apis)}
        self.apis = {name: self._api(name) for name in self.ports}

    # ---- all together ---------------------------------------------------------------------------

    def heal(self) -> None:
        """Start every process that doesn't run, let all connections through, and wait until all are ready."""
        for proxy in self.proxies.values():
            proxy.release()
        self.start_valkey()
        for process in (*self.workers.values(), *self.apis.values()):
            process.resume()
            process.start()
        wait_until(self.is_ready, timeout=90, interval=0.05)

    def close(self) -> None:
        """End every process at once."""
        for process in (*self.apis.values(), *self.workers.values(), self.valkey):
            process.kill()
        for proxy in self.proxies.values():
            proxy.close()
        self.redis.close()
        self._keeper.close()
        self._lock.close()

    def is_ready(self) -> bool:
        """Whether every child is registered, and every API takes requests."""
        for process in (*self.workers.values(), *self.apis.values()):
            assert process.is_running, f"{process.name} ended:\n{process.tail()}"
        return all(map(self.is_worker_ready, self.workers.values())) and all(
            map(self.is_api_ready, self.apis)
        )

    def is_worker_ready(self, worker: Process) -> bool:
        """Whether a worker host has all its children, each with a context."""
        return len(self.children(worker)) == WORKERS

    def is_api_ready(self, name: str) -> bool:
        """Whether an API process takes requests."""
        return answers_200(f"{self.api_url(name)}/readyz")()

    def is_quiet(self) -> bool:
        """Whether no request waits, runs, or is reserved."""
        reserved = (UNACKED_OPTIONS[name] for name in ("unacked_key", "unacked_index_key"))
        waiting = self.redis.keys(queue_name("*"))
        return not (waiting or self.redis.exists(redis_names.RUNNING, redis_names.DEADLINES, *reserved))

    @property
    def model_name(self) -> str:
        """The model that clients ask for."""
        return self.model.name.removesuffix(".gguf")

    # ---- Valkey ---------------------------------------------------------------------------------

    def _connect(self) -> Redis:
        return Redis.from_url(self.redis_url, socket_timeout=5, socket_connect_timeout=2)

    def start_valkey(self) -> None:
        """Start Valkey, unless it runs, and wait until it has read its append-only file."""
        self.valkey.start()
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.valkey.is_running, self.valkey.tail()
        try:
            return bool(self.redis.ping())
        except RedisError:
            return False

    def url_by(self, host: str, port: int) -> str:
        """Valkey's URL through another address."""
        return f"{self._credentials}{host}:{port}/0"

    # ---- requests and children ------------------------------------------------------------------

    def urls(self) -> list[str]:
        """The base URLs of the APIs."""
        return [self.api_url(name) for name in self.apis]

    def api_url(self, name: str) -> str:
        """The base URL of one API."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def children(self, worker: Process) -> list[str]:
        """Registry ids of a worker's children that live and have a context."""
        pids = set(worker.children())
        return [child.id for child in self.registry.children() if child.pid in pids]

    def running(self) -> list[Running]:
        """The claimed requests."""
        ids = cast("list[bytes]", self.redis.zrange(redis_names.RUNNING, 0, -1))
        with self.redis.pipeline(transaction=False) as pipe:
            for each in ids:
                pipe.hmget(redis_names.record(each.decode()), "child", "attempt")
            found = pipe.execute()
        pairs = zip(ids, found, strict=True)
        return [Running(i.decode(), child.decode(), int(attempt)) for i, (child, attempt) in pairs if child]

    def running_on(self, children: Iterable[str]) -> list[Running]:
        """The claimed requests of these children."""
        wanted = set(children)
        return [each for each in self.running() if each.child in wanted]

    def record_ids(self) -> list[str]:
        """Ids of all requests that Valkey still knows."""
        start = len(redis_names.record(""))
        return [key.decode()[start:] for key in self.redis.scan_iter(redis_names.record("*"), count=1000)]

    def forget_all(self) -> None:
        """Drop every request; all of them must be over."""
        for pattern in (redis_names.record("*"), redis_names.log("*")):
            if found := list(self.redis.scan_iter(pattern, count=1000)):
                self.redis.delete(*found)

    # ---- how they are started -------------------------------------------------------------------

    def _valkey(self, password: str) -> Process:
        return self._make_valkey("valkey", self.valkey_port, password)

    def _make_valkey(self, name: str, port: int, password: str, **more: str) -> Process:
        folder = self.root / name
        folder.mkdir(parents=True)
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "requirepass": password,
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            **more,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return self.make_process(name, (str(binary()), *arguments), {})

    def _proxied(self, name: str) -> str:
        self.proxies[name] = Proxy(("127.0.0.1", self.valkey_port))
        return self.url_by("127.0.0.1", self.proxies[name].port)

    def _worker(self, name: str) -> Process:
        return self.make_worker(name, self._proxied(name))

    def make_worker(self, name: str, redis_url: str, *options: str, prefix: tuple[str, ...] = ()) -> Process:
        """A worker host, not started yet; ``prefix`` comes before its command."""
        given = {
            "redis-url": redis_url,
            "model": self.model,
            "workers": WORKERS,
            "slots": SLOTS,
            "threads": 1,
            "n-ctx": self.sizes.n_ctx,
            "lease": self.sizes.lease,
            "drain-timeout": self.sizes.drain,
            **self._shared(),
        }
        arguments = [*_options(given), "--oversubscribe", *options]
        # Several hosts share these cores: a thread that waits for another one must not occupy a core.
        env = {"OMP_WAIT_POLICY": "passive"}
        return self.make_process(name, (*prefix, *COMMAND, "worker", *arguments), env)

    def _api(self, name: str) -> Process:
        given = {
            "redis-url": self._proxied(name),
            "model": self.model,
            "port": self.ports[name],
            "drain-timeout": self.sizes.drain,
            **self._shared(),
        }
        # For the last release, whose API leaves files when it is killed.
        env = {"PROMETHEUS_MULTIPROC_DIR": str(self.root / f"{name}.metrics")}
        return self.make_process(name, (*COMMAND, "api", *_options(given)), env)

    def make_process(self, name: str, command: tuple[str, ...], env: Mapping[str, str]) -> Process:
        """A process of the cluster, not started yet; ``env`` is added to a clean environment."""
        code, log = self._checkouts.get(name, Checkout()), self.root / f"{name}.log"
        variables = {**clean_environment(), **env, **code.env}
        return Process(name, command, variables, log, self._keeper, code.folder)

    def _shared(self) -> dict[str, object]:
        return {
            "queue-limit": 512,
            "max-attempts": self.sizes.max_attempts,
            "result-ttl": self.sizes.result_ttl,
            "log-level": "info",
        }


def _options(given: dict[str, object]) -> list[str]:
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


@contextmanager
def cluster(
    root: Path, model: Path, sizes: Sizes | None = None, checkouts: Mapping[str, Checkout] | None = None
) -> Iterator[Cluster]:
    """A cluster that is ready; it ends with the block."""
    made = Cluster(root, model, sizes or Sizes(), checkouts)
    try:
        made.heal()
        yield made
    finally:
        made.close()
