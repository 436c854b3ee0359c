"""Connections take turns: gevent switches only where one has to wait, and a quick client lets none wait."""

from __future__ import annotations

from typing import Any

import gevent
from gevent.socket import socket


class FairSocket(socket):  # type: ignore[misc]
    """A connection that lets the others go on before it reads."""

    @classmethod
    def of(cls, client: socket) -> FairSocket:
        """The same connection; ``client`` itself can't be used any more."""
        return cls(client.family, client.type, client.proto, fileno=client.detach())

    def recv(self, *args: Any) -> bytes:
        """Read as any socket does."""
        gevent.sleep(0)
        data: bytes = super().recv(*args)
        return data
