"""How a process tells the worker's parent that no child can ever be ready; the parent ends the worker."""

from __future__ import annotations

import os
import select

#: Most bytes of a message: as many as a pipe takes in one write.
_SIZE = select.PIPE_BUF - 1


class Refusal:
    """A pipe; make it before forking. It keeps a reason until the parent reads it."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def say(self, text: str) -> None:
        """Give the reason, from any process and thread."""
        os.write(self._writer, text.encode()[:_SIZE] + b"\0")

    def wait(self) -> str:
        """The first reason that was given, as soon as there is one."""
        return os.read(self._reader, select.PIPE_BUF).partition(b"\0")[0].decode(errors="ignore")
