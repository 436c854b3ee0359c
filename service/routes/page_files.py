"""Reads the page's files once; doesn't use Flask.

Each file's address contains a digest of all files, so a browser may cache a file for ever and still never
mix two releases. Modules import each other by relative paths, which keep the digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, as it is sent."""

    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The page and what it loads.

    Attributes:
        index: the page itself.
        files: the files it loads, by their path below ``assets/``.
        digest: identifies this set of files.
    """

    index: Asset
    files: dict[str, Asset]
    digest: str

    @classmethod
    def read(cls, folder: Path = FOLDER) -> Assets:
        """Read all files. Raises ``OSError``."""
        root = folder / "assets"
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        files = {path.relative_to(root).as_posix(): _asset(path) for path in paths}
        digest = _digest(files)
        index = _asset(folder / "index.html")
        content = index.content.replace(b"assets/", f"assets/{digest}/".encode())
        return cls(Asset(content, index.content_type), files, digest)


def _asset(path: Path) -> Asset:
    return Asset(path.read_bytes(), _TYPES.get(path.suffix, "text/plain; charset=utf-8"))


def _digest(files: dict[str, Asset]) -> str:
    whole = hashlib.sha256()
    for name, asset in files.items():
        whole.update(name.encode() + b"\0" + hashlib.sha256(asset.content).digest())
    return whole.hexdigest()[:12]
