"""Ports for servers under test."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A free loopback port; the system gives it to no other program before its server takes it."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
