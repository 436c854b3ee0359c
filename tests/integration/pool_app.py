"""A worker's application with a task that a test holds and lets go, through Redis."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from celery import signals
from redis import Redis

from tasks.celery import create_app
from tasks.settings import WorkerSettings
from tasks.worker.liveness.pulse import Pulse
from tasks.worker.pool.children import child_index

settings = WorkerSettings()
app = create_app(settings)
app.conf.update(imports=())
app.conf.broker_transport_options["client_name"] = "worker"
#: Makes this a worker of a later release, if the test wants one.
if known := os.environ.get("TEST_KNOWN_VERSION"):
    app.conf.broker_transport_options["known_version"] = int(known)
#: Notes what steps cost, as a child would, if the test says so.
app.step_costs.write(os.environ.get("TEST_STEP_COSTS", "").encode())


@signals.worker_process_init.connect(weak=False)
def beat(**_: Any) -> None:
    """Say that this child gets on, as a real one does, until the test's file says that it hangs."""
    if hung := os.environ.get("TEST_HUNG"):
        Pulse(partial(app.pulses.beat, child_index()), lambda: not Path(hung).exists()).start()


@app.task(name="hold")
def hold(name: str) -> None:
    """Note which process runs this, wait for permission, note the end."""
    redis = Redis.from_url(settings.redis_url, socket_timeout=None)
    redis.rpush("started", f"{name} {os.getpid()}")
    redis.blpop([f"go:{name}"], timeout=60)
    redis.rpush("done", name)
    redis.close()


@app.task(name="say")
def say(name: str) -> None:
    """End at once."""
    redis = Redis.from_url(settings.redis_url)
    redis.rpush("done", name)
    redis.close()
