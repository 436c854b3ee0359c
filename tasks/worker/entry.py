"""What a worker imports: its task, or, if llama.cpp can't be loaded, a handler that ends it and says why."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import signals

from tasks.engine.errors import ModelError
from tasks.worker.ending.give_up import refuse_to_start


def _refuse(text: str, sender: Any, **_: Any) -> None:
    refuse_to_start(sender, text)


try:
    import tasks.worker.task  # noqa: F401 - its task and its signal handlers
except (ModelError, ImportError) as error:
    # Only a worker ends; `celery inspect` and the like do not need the library.
    signals.worker_init.connect(partial(_refuse, f"The worker can't serve: {error}."), weak=False)
