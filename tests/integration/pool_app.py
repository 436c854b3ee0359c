"""A worker's application with a task that a test holds and lets go, through Redis."""

from __future__ import annotations

import os

from redis import Redis

from tasks.celery import create_app
from tasks.settings import WorkerSettings

settings = WorkerSettings()
app = create_app(settings)
app.conf.update(imports=())
app.conf.broker_transport_options["client_name"] = "worker"
#: Makes this a worker of a later release, if the test wants one.
if known := os.environ.get("TEST_KNOWN_VERSION"):
    app.conf.broker_transport_options["known_version"] = int(known)
#: Notes what steps cost, as a child would, if the test says so.
app.step_costs.write(os.environ.get("TEST_STEP_COSTS", "").encode())


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
