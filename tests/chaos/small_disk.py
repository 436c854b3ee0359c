"""A disk that can be filled: a small tmpfs, mounted for one process and its children only."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Mounts at its first argument a tmpfs of as many MiB as the second says, and becomes the rest.
_SCRIPT = 'mount -t tmpfs -o "size=$1m" small "$0" && shift && exec "$@"'
_CHUNK = 1 << 16


@dataclass(frozen=True)
class SmallDisk:
    """A disk of ``size_mib`` at ``folder``; only what is started with :attr:`prefix` sees it."""

    folder: Path
    size_mib: int = 16

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command to run it with the disk; the process keeps its id."""
        return ("unshare", "-Urm", "sh", "-c", _SCRIPT, str(self.folder), str(self.size_mib))

    def seen_by(self, pid: int) -> Path:
        """The disk as anybody reaches it, through a process that sees it."""
        return Path(f"/proc/{pid}/root{self.folder}")


def fill(folder: Path) -> Path:
    """Take all space that is left, to the last byte; return the file to remove."""
    file = folder / "ballast"
    with file.open("ab", buffering=0) as ballast:
        for size in (_CHUNK, 1):
            try:
                while True:
                    ballast.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return file


def why_not(folder: Path) -> str | None:
    """Why no small disk can be mounted here, or ``None``."""
    disk = SmallDisk(folder)
    done = subprocess.run((*disk.prefix, "true"), capture_output=True, text=True, check=False)
    return f"a tmpfs can't be mounted here: {done.stderr.strip()}" if done.returncode else None


def is_full(folder: Path) -> bool:
    """Whether no block is free."""
    return os.statvfs(folder).f_bavail == 0
