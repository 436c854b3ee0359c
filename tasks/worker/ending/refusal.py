"""How a worker's process tells the parent, which ends the worker, that no child can ever be ready."""

from __future__ import annotations

import os
import select

#: Bytes of a message at most: as many as a pipe takes whole.
_SIZE = select.PIPE_BUF - 1


class Refusal:
    """A pipe; make it before forking. What is said before anyone listens is kept."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def say(self, text: str) -> None:
        """Give the reason. From any process and thread."""
        os.write(self._writer, text.encode()[:_SIZE] + b"\0")

    def wait(self) -> str:
        """The first reason that was given, as soon as there is one."""
        return os.read(self._reader, select.PIPE_BUF).partition(b"\0")[0].decode(errors="ignore")
