"""A cluster whose processes find Valkey's primary by three Sentinels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from redis import Redis, RedisError

from service.supervisor.programs.valkey import binary
from tasks.store.connect import connect
from tests.chaos.cluster import Cluster, Sizes
from tests.chaos.process import Process
from tests.ports import free_port
from tests.waiting import wait_until

#: What the Sentinels call the primary and its replica.
MASTER = "inference"
#: How many Sentinels there are, and how many of them must agree that the primary is gone.
SENTINELS, QUORUM = 3, 2


class SentinelCluster(Cluster):
    """``valkey`` is the first primary, ``replica`` follows it, and ``sentinels`` watch both."""

    replica: Process
    sentinels: list[Process]

    def __init__(self, root: Path, model: Path, sizes: Sizes) -> None:
        self._replica_port = free_port()
        self._sentinel_ports = [free_port() for _ in range(SENTINELS)]
        super().__init__(root, model, sizes)

    def is_ready(self) -> bool:
        """Whether the primary is there, every child is registered, and every API takes requests."""
        return self._without_error(super().is_ready)

    def _answers(self) -> bool:
        return self._without_error(self.redis.ping)

    @staticmethod
    def _without_error(ask: Callable[[], object]) -> bool:
        """What Valkey's clients say; no while they look for the new primary."""
        try:
            return bool(ask())
        except RedisError:
            return False

    def promoted(self) -> bool:
        """Whether the replica has become the primary."""
        with Redis.from_url(self.url_by("127.0.0.1", self._replica_port)) as replica:
            return self._without_error(lambda: replica.role()[0] == b"master")

    def close(self) -> None:
        """End every process at once."""
        for process in (self.replica, *self.sentinels):
            process.kill()
        super().close()

    def start_valkey(self) -> None:
        """Start the primary, its replica and the Sentinels, and wait until they know each other."""
        self.valkey.start()
        self.replica.start()
        for each in self.sentinels:
            each.start()
        wait_until(self._answers)
        wait_until(self._are_acquainted, timeout=60)

    def _are_acquainted(self) -> bool:
        with Redis.from_url(f"redis://127.0.0.1:{self._sentinel_ports[0]}") as sentinel:
            state = sentinel.sentinel_master(MASTER)
        return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == SENTINELS - 1)

    def _connect(self) -> Redis:
        return connect(self._sentinel_url())

    def _proxied(self, name: str) -> str:
        return self._sentinel_url()

    def _sentinel_url(self) -> str:
        hosts = ";".join(
            self._credentials.replace("redis", "sentinel") + f"127.0.0.1:{port}"
            for port in self._sentinel_ports
        )
        return f"{hosts}/0?master_name={MASTER}"

    def _valkey(self, password: str) -> Process:
        follows = {"replicaof": f"127.0.0.1 {self.valkey_port}", "masterauth": password}
        self.replica = self._make_valkey("replica", self._replica_port, password, **follows)
        self.sentinels = [self._sentinel(port, password) for port in self._sentinel_ports]
        return self._make_valkey("valkey", self.valkey_port, password, masterauth=password)

    def _sentinel(self, port: int, password: str) -> Process:
        config = self.root / f"sentinel-{port}.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {port}\ndir {self.root}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self.valkey_port} {QUORUM}\n"
            f"sentinel auth-pass {MASTER} {password}\n"
            f"sentinel down-after-milliseconds {MASTER} 1000\n"
            f"sentinel failover-timeout {MASTER} 5000\n"
        )
        return self.make_process(f"sentinel-{port}", (str(binary()), str(config), "--sentinel"), {})
