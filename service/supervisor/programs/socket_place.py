"""Where the embedded Valkey's Unix socket is: in a folder that only this user can enter."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from service.supervisor.errors import ServiceError

_NAME = "valkey.sock"


def place_socket(folder: Path) -> Path:
    """The path for a socket: in ``folder`` if it can be there, else in a folder with a shorter path.

    A socket's path has 107 bytes at most, and some file systems have no sockets. A shorter folder is the same
    at the next start, so that none are left behind. Raises ``ServiceError`` if no place can be found.
    """
    tried: list[str] = []
    for place in (folder, *_short_places(folder)):
        try:
            _make_private(place)
            _try(place / _NAME)
        except OSError as error:
            tried.append(f"{place / _NAME}: {error.strerror or error}")
        else:
            return place / _NAME
    raise ServiceError(f"Valkey's Unix socket can be nowhere ({'; '.join(tried)}); pass another --state-dir.")


def _short_places(folder: Path) -> list[Path]:
    """Folders of this user and of this state: in XDG's runtime folder, or else in the temporary one."""
    tag = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(runtime) / f"inference-server-{tag}"] if runtime else []
    return [*places, Path(tempfile.gettempdir()) / f"inference-server-{os.getuid()}-{tag}"]


def _make_private(place: Path) -> None:
    """Make the folder if it is missing. Raises ``OSError`` unless it is this user's alone."""
    place.mkdir(exist_ok=True, mode=0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(0, "not a folder of this user")
    place.chmod(0o700)


def _try(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.bind(str(path))
        finally:
            with suppress(FileNotFoundError, OSError):
                path.unlink()
