"""Hosts on one machine: network namespaces with their own addresses. Each of them can be cut off."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: A private network for this process only, so that two test runs don't meet.
_NET = f"10.213.{os.getpid() % 250}"
_TAG = f"{os.getpid() % 100_000}"


@dataclass(frozen=True)
class Host:
    """One namespace. ``prefix`` before a command runs it there."""

    name: str
    address: str
    link: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command to run it on this host; the process keeps its id."""
        return ("ip", "netns", "exec", self.name)

    def cut_off(self) -> None:
        """Pull the cable: packets vanish, and neither side is told."""
        _ip("link", "set", self.link, "down")

    def join(self) -> None:
        """Plug the cable in again."""
        _ip("link", "set", self.link, "up")


@dataclass(frozen=True)
class Network:
    """Some hosts, and ``gateway``, the address at which they reach this host."""

    gateway: str
    hosts: tuple[Host, ...]


def why_not() -> str | None:
    """Why no namespace can be made here, or ``None``."""
    try:
        with network(1):
            return None
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return f"network namespaces can't be made here: {detail.strip()}"


@contextmanager
def network(num: int) -> Iterator[Network]:
    """``num`` hosts on one bridge; removed afterwards."""
    bridge, gateway = f"cb{_TAG}", f"{_NET}.1"
    hosts = tuple(Host(f"chaos-{_TAG}-{i}", f"{_NET}.{i + 2}", f"cv{_TAG}-{i}") for i in range(num))
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{gateway}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host in hosts:
            _connect(host, bridge)
        yield Network(gateway, hosts)
    finally:
        for host in hosts:
            # Delete the link by its name: a namespace outlives its name while one of its connections ends.
            _ip("link", "del", host.link, must=False)
            _ip("netns", "del", host.name, must=False)
        _ip("link", "del", bridge, must=False)


def _connect(host: Host, bridge: str) -> None:
    _ip("netns", "add", host.name)
    _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    _ip("link", "set", host.link, "master", bridge)
    _ip("link", "set", host.link, "up")
    _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", host.name, "link", "set", device, "up")


def _ip(*arguments: str, must: bool = True) -> None:
    subprocess.run(("ip", *arguments), check=must, capture_output=True, text=True, timeout=10)
