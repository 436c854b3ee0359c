"""Traces, if an OTLP endpoint is set; without an endpoint, no code for traces is imported."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.settings import BrokerSettings

logger = logging.getLogger(__name__)


def is_wanted(settings: BrokerSettings) -> bool:
    """Whether to make traces. Logs a warning when they are wanted but can't be made."""
    if not settings.otlp_endpoint:
        return False
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.instrumentation.celery
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        logger.warning(
            "No traces, though an OTLP endpoint is set (%s): "
            "pip install 'concurrent-inference-server[tracing]', or leave the endpoint out",
            error,
        )
        return False
    return True
