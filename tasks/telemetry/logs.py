"""Configures logs in the same way in every process; each module logs through ``logging``.

A record's ``extra`` holds its fields. Fields that :func:`bound` binds, such as a request's id, are in every
record of the block. This module imports only what it needs, since gunicorn's configuration imports it before
gevent patches the process.
"""

from __future__ import annotations

import logging.config
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name

from tasks.telemetry.printable import printable, printable_lines

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

    from tasks.settings import BrokerSettings

#: Loggers that write two more lines for each request, or lines for each connection.
_WORDY = ("celery.worker.strategy", "celery.app.trace", "kombu", "amqp", "urllib3")
_FIRST = ("timestamp", "level", "logger", "event")


def configure(settings: BrokerSettings, level: int | str | None = None) -> None:
    """Log to standard error as the settings say; ``level``, if given, overrides theirs."""
    logging.config.dictConfig(configuration(settings, level))


def configuration(settings: BrokerSettings, level: int | str | None = None) -> dict[str, Any]:
    """The configuration for :func:`logging.config.dictConfig`."""
    chosen = logging.getLevelName(level) if isinstance(level, int) else (level or settings.log_level)
    chosen = chosen.upper()
    quieter = chosen if chosen in ("DEBUG", "ERROR", "CRITICAL") else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"chosen": _formatter(settings.log_format)},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "chosen"}},
        "root": {"level": chosen, "handlers": ["stderr"]},
        "loggers": {
            # This removes the handler that gunicorn adds.
            "gunicorn.error": {"level": chosen, "handlers": [], "propagate": True},
            **{name: {"level": quieter} for name in _WORDY},
        },
    }


def bound(**fields: Any) -> AbstractContextManager[None]:
    """Add ``fields`` to all records of the block, in this thread or greenlet."""
    return bound_contextvars(**fields)


def _formatter(log_format: str) -> dict[str, Any]:
    added: list[Processor] = [
        merge_contextvars,
        add_log_level,
        add_logger_name,
        ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    return {
        "()": ProcessorFormatter,
        "foreign_pre_chain": added,
        "processors": [_with_process, ProcessorFormatter.remove_processors_meta, *_rendering(log_format)],
    }


def _rendering(log_format: str) -> list[Processor]:
    if log_format == "json":
        # Without the frames' variables, because one of them may hold a prompt.
        return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    console = structlog.dev.ConsoleRenderer(
        colors=False, pad_event_to=0, sort_keys=False, exception_formatter=plain
    )
    return [_event_in_a_line, console, _printable]


def _with_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["pid"] = event["_record"].process
    return event


def _event_in_a_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["event"] = printable(str(event["event"]))  # the renderer keeps the fields in the line
    return event


def _printable(_logger: WrappedLogger, _method: str, rendered: object) -> str:
    return printable_lines(str(rendered))


def _in_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {name: event[name] for name in (*_FIRST, *event) if name in event}
