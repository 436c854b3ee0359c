"""A real worker under test, and the means to control its tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from redis import Redis

from tasks.celery import create_app
from tasks.contract.messages import queue_name
from tasks.queue.leases import UNACKED_OPTIONS
from tasks.settings import BrokerSettings
from tests.waiting import wait_until

WORKERS, SLOTS = 2, 4
LEASES = UNACKED_OPTIONS["unacked_index_key"]
QUEUE = queue_name("m")


@dataclass
class Rig:
    """A client and the worker's process."""

    redis: Redis
    app: Celery
    process: subprocess.Popen[bytes]
    log: Path

    def hold(self, *names: str) -> None:
        """Start tasks that go on until they are let go."""
        for name in names:
            self.app.send_task("hold", args=[name], task_id=name, queue=QUEUE)

    def say(self, name: str) -> None:
        """Start a task that ends at once."""
        self.app.send_task("say", args=[name], task_id=name, queue=QUEUE)

    def let_go(self, *names: str) -> None:
        for name in names:
            self.redis.rpush(f"go:{name}", 1)

    def started(self) -> list[tuple[str, int]]:
        """Name and child of every task started so far."""
        pairs = (text.split() for text in self.listed("started"))
        return [(name, int(pid)) for name, pid in pairs]

    def done(self) -> list[str]:
        return sorted(self.listed("done"))

    def listed(self, key: str) -> list[str]:
        return [text.decode() for text in self.redis.lrange(key, 0, -1) if isinstance(text, bytes)]

    def wait_started(self, num: int) -> list[tuple[str, int]]:
        return wait_until(lambda: runs if len(runs := self.started()) >= num else [])

    def num_leases(self) -> int:
        return self.redis.zcard(LEASES)

    def pool(self) -> dict[str, Any]:
        """What the worker says of its pool; asks again, since a reconnecting worker may not hear."""
        inspect = self.app.control.inspect(timeout=1, limit=1)
        [stats] = wait_until(inspect.stats).values()
        return dict(stats["pool"])

    def free(self) -> list[int]:
        return [child["free"] for child in self.pool()["children"]]

    def is_done(self, *names: str) -> Callable[[], bool]:
        return lambda: self.done() == sorted(names) and not self.num_leases()

    def stop(self, signum: int = signal.SIGTERM) -> None:
        self.process.send_signal(signum)


@contextmanager
def worker(
    url: str, redis: Redis, log: Path, *args: str, app_module: str = "pool_app", **settings: str
) -> Iterator[Rig]:
    """A worker that is ready; it ends with the block. With another ``app_module`` it may still start."""
    with starting_worker(url, redis, log, *args, app_module=app_module, **settings) as rig:
        if app_module == "pool_app":
            wait_until(lambda: b"ready." in log.read_bytes() or rig.process.poll() is not None, timeout=30)
            assert rig.process.poll() is None, log.read_text()
        yield rig


@contextmanager
def starting_worker(
    url: str, redis: Redis, log: Path, *args: str, app_module: str = "pool_app", **settings: str
) -> Iterator[Rig]:
    """A worker that may still start; it ends with the block."""
    environ = {
        **os.environ,
        "INFERENCE_REDIS_URL": url,
        "INFERENCE_MODEL_NAME": "m",
        "INFERENCE_WORKERS": str(WORKERS),
        "INFERENCE_SLOTS": str(SLOTS),
        "INFERENCE_THREADS": "1",
        "INFERENCE_OVERSUBSCRIBE": "1",
        **settings,
    }
    command = [sys.executable, "-m", "celery", "-A", f"tests.integration.{app_module}", "worker"]
    quick = ["--without-mingle", "--without-gossip", "--loglevel=INFO"]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *quick, *args], env=environ, stdout=out, stderr=out)
    publishers_url = settings.get("TEST_REDIS_URL", url)
    app = create_app(BrokerSettings(redis_url=publishers_url, model_name="m", queue_limit=1000))
    try:
        yield Rig(redis, app, process, log)
    finally:
        process.kill()
        process.wait()
        app.close()


def wait_for_renewals(redis: Redis, num: int) -> None:
    """Wait for ``num`` renewals of a lease; with a lease of 1 s, four of them take longer than the lease."""
    seen: set[float] = set()

    def enough() -> bool:
        oldest = redis.zrange(LEASES, 0, 0, withscores=True)
        seen.update(float(score) for _, score in oldest)  # type: ignore[str-unpack]
        return len(seen) > num

    wait_until(enough)
