"""The pool's application with children that end before they are ready. The test's variables say how.

``TEST_ENDING``: the signal or the exit status with which every child ends; ``TEST_REFUSAL``: the reason that
each child gives why no child can become ready. If the file ``TEST_HEALED`` exists, a child becomes ready.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from billiard import current_process
from celery import signals
from redis import Redis

from tasks.worker.ending.model_file import ModelFile
from tests.integration import pool_app

app = pool_app.app
redis = Redis.from_url(pool_app.settings.redis_url)


@signals.worker_init.connect(weak=False)
def note_model(**_: Any) -> None:
    """Note the model's file, as a parent that loads a model does."""
    if model := pool_app.settings.model:
        app.model_file = ModelFile.at(model)


@signals.worker_process_init.connect(weak=False)
def end(**_: Any) -> None:
    """Say that a child has started, and end it."""
    redis.rpush("children", os.getpid())
    app.stages.note(current_process().index, "computing the first batch")
    if Path(os.environ.get("TEST_HEALED", "/nonexistent")).exists():
        return
    if refusal := os.environ.get("TEST_REFUSAL"):
        app.refusal.say(refusal)
    if (ending := os.environ.get("TEST_ENDING", "")).isdecimal():
        os._exit(int(ending))
    if ending:
        os.kill(os.getpid(), signal.Signals[ending])
