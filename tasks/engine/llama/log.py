"""Receives llama.cpp's messages, and keeps its latest errors for our own error messages."""

from __future__ import annotations

import ctypes
import logging
from collections import deque

from tasks.engine.llama.library import llama_cpp as ll

logger = logging.getLogger(__name__)

_GGML_LOG_LEVEL_WARN, _GGML_LOG_LEVEL_ERROR = 3, 4
#: llama.cpp's latest errors, the newest at the end.
recent_errors: deque[str] = deque(maxlen=8)


def listen() -> None:
    """Send llama.cpp's messages to this module."""
    ll.llama_log_set(_on_log, ctypes.c_void_p(0))


@ll.llama_log_callback
def _on_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    message = text.decode(errors="replace").rstrip()
    if level == _GGML_LOG_LEVEL_ERROR:
        recent_errors.append(message)
    if level in (_GGML_LOG_LEVEL_WARN, _GGML_LOG_LEVEL_ERROR):
        logger.debug("llama.cpp: %s", message)
