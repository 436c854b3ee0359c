"""The faults of a soak, injected one at a time; after each one the cluster can become whole again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

from redis import RedisError

from tests.chaos.cluster import Cluster
from tests.chaos.process import Process

Fault = Callable[[Cluster, random.Random], None]


def kill_a_child(cluster: Cluster, pick: random.Random) -> None:
    """SIGKILL to one child of a worker."""
    if children := _worker(cluster, pick).children():
        os.kill(pick.choice(children), signal.SIGKILL)


def lose_a_worker(cluster: Cluster, pick: random.Random) -> None:
    """SIGKILL to a worker host; it starts again."""
    worker = _worker(cluster, pick)
    worker.kill()
    worker.start()


def restart_a_worker(cluster: Cluster, pick: random.Random) -> None:
    """SIGTERM to a worker host; it starts again."""
    _restart(_worker(cluster, pick))


def restart_an_api(cluster: Cluster, pick: random.Random) -> None:
    """SIGTERM to an API; it starts again."""
    _restart(_api(cluster, pick))


def lose_an_api(cluster: Cluster, pick: random.Random) -> None:
    """SIGKILL to an API; it starts again."""
    api = _api(cluster, pick)
    api.kill()
    api.start()


def lose_valkey(cluster: Cluster, pick: random.Random) -> None:
    """SIGKILL to Valkey; it starts again on its append-only file."""
    cluster.valkey.kill()
    time.sleep(pick.uniform(0, 1))  # how long it is away
    cluster.start_valkey()


def pause_a_worker(cluster: Cluster, pick: random.Random) -> None:
    """SIGSTOP to a worker host for longer than its lease."""
    worker = _worker(cluster, pick)
    worker.pause()
    time.sleep(cluster.sizes.lease + 2)  # how long it sleeps
    worker.resume()


def cut_all(cluster: Cluster, pick: random.Random) -> None:
    """Break every connection of every process to Valkey."""
    for proxy in cluster.proxies.values():
        proxy.cut_all()


def cut_some(cluster: Cluster, pick: random.Random) -> None:
    """Break ten connections, one by one."""
    for _ in range(10):
        pick.choice(list(cluster.proxies.values())).cut_one(pick)


def kick_clients(cluster: Cluster, pick: random.Random) -> None:
    """Have Valkey itself close all its clients' connections."""
    try:
        cluster.redis.client_kill_filter(_type="normal", skipme=True)
        cluster.redis.client_kill_filter(_type="pubsub")
    except RedisError:
        return  # Valkey is away, so they are closed


def stall(cluster: Cluster, pick: random.Random) -> None:
    """Hold the data between one process and Valkey for a while, then let it through."""
    proxy = pick.choice(list(cluster.proxies.values()))
    proxy.hold()
    time.sleep(pick.uniform(0.5, 3))  # the length of the stall
    proxy.release()


def slow_down(cluster: Cluster, pick: random.Random) -> None:
    """A slow network for a while."""
    proxy = pick.choice(list(cluster.proxies.values()))
    proxy.delay_s = 0.05
    time.sleep(2)  # how long it is slow
    proxy.release()


#: Every fault of this module.
FAULTS: tuple[Fault, ...] = (
    kill_a_child,
    lose_a_worker,
    restart_a_worker,
    restart_an_api,
    lose_an_api,
    lose_valkey,
    pause_a_worker,
    cut_all,
    cut_some,
    kick_clients,
    stall,
    slow_down,
)


def _worker(cluster: Cluster, pick: random.Random) -> Process:
    return pick.choice(list(cluster.workers.values()))


def _api(cluster: Cluster, pick: random.Random) -> Process:
    return pick.choice(list(cluster.apis.values()))


def _restart(process: Process) -> None:
    process.terminate()
    process.wait()
    process.start()
