"""A worker's application with a task that a test holds and lets go, through Redis."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

from celery import signals
from redis import Redis, ResponseError

from tasks.celery import create_app
from tasks.contract.messages import TASK_NAME, End, FinishReason, State, Usage
from tasks.settings import WorkerSettings
from tasks.worker.attempt_store import Append, AttemptStore
from tasks.worker.consumer.cancellable import CancellableRequest
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


#: The tasks may have another user than the worker, to whom Redis refuses something.
URL = os.environ.get("TEST_REDIS_URL", settings.redis_url)


@app.task(name="hold")
def hold(name: str) -> None:
    """Note which process runs this, wait for permission, note the end."""
    redis = Redis.from_url(URL, socket_timeout=None)
    redis.rpush("started", f"{name} {os.getpid()}")
    _wait_for(redis, f"go:{name}")
    redis.rpush("done", name)
    redis.close()


def _wait_for(redis: Redis, name: str) -> None:
    while True:
        try:
            redis.blpop([name], timeout=60)
        except ResponseError:  # Redis has become a replica, or was one
            sleep(0.05)
        else:
            return


@app.task(name=TASK_NAME, Request=CancellableRequest)
def generate(request_id: str) -> None:
    """A request that is claimed and makes a token every few milliseconds, without a model."""
    redis = Redis.from_url(URL)
    store = AttemptStore(redis)
    if (attempt := store.claim(request_id, "child", 3)) is None:
        return
    for seq in range(1, (attempt.request.max_tokens or 1) + 1):
        item = Append(request_id, attempt.number, attempt.seq + seq, "t", (7,), fence=attempt.fence)
        if not store.append([item])[0]:
            return
        sleep(0.05)
    end = End(State.SUCCEEDED, FinishReason.LENGTH, Usage(1, seq))
    store.append([Append(request_id, attempt.number, attempt.seq + seq + 1, end=end, fence=attempt.fence)])


@app.task(name="say")
def say(name: str) -> None:
    """End at once."""
    redis = Redis.from_url(URL)
    redis.rpush("done", name)
    redis.close()
