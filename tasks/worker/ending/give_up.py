"""How a worker that can't go on ends: one message in its log, the same in Redis, one exit status."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from redis import RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.contract.exit_status import HOPELESS
from tasks.settings import BrokerSettings
from tasks.store import last_words
from tasks.store.connect import connect
from tasks.store.last_words import LastWords
from tasks.telemetry import logs

logger = logging.getLogger(__name__)

#: Most seconds for connecting, and for writing: a worker that ends must not wait long.
_TIMEOUT_S = 1.0


def say_last_words(settings: BrokerSettings, worker: str, text: str) -> None:
    """Log why a worker ends, and leave it for the API and for `serve`, if Redis can be reached."""
    logger.critical("%s", text)
    timeouts: dict[str, Any] = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S}
    try:
        with connect(settings.redis_url, **timeouts, retry=Retry(NoBackoff(), 0)) as redis:
            last_words.leave(redis, LastWords(worker, settings.served_name or "", text))
    except (RedisError, OSError) as error:
        logger.info("could not tell Redis why this worker ends: %s", error)


def refuse_to_start(worker: Any, text: str) -> NoReturn:
    """End a worker that is still starting; it has no children and no requests yet."""
    logs.configure(worker.app.settings)  # Celery has not done this yet
    say_last_words(worker.app.settings, worker.hostname, text)
    raise SystemExit(HOPELESS)
