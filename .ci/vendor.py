"""Brings the page's libraries from npm into the package, or checks that they are what was brought.

    python .ci/vendor.py            download what `libraries.json` names, check it, write it
    python .ci/vendor.py --check    compare the files with the hashes kept beside them; needs no network

To take another version, change it in `libraries.json` with the tarball's `integrity` as npm tells it
(`npm view NAME@VERSION dist.integrity`), run this, and look at the difference.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "service" / "page" / "assets" / "vendor"
REGISTRY = "https://registry.npmjs.org"


def main() -> int:
    """Vendor or check; the exit code."""
    wanted = json.loads((FOLDER / "libraries.json").read_text())
    if sys.argv[1:] == ["--check"]:
        return check()
    for library in wanted["libraries"]:
        bring(library, wanted["imports"])
    hashes = {path.name: digest(path) for path in vendored()}
    (FOLDER / "hashes.json").write_text(json.dumps(hashes, indent=2) + "\n")
    return 0


def check() -> int:
    """Whether every file is the one that was brought."""
    known = json.loads((FOLDER / "hashes.json").read_text())
    found = {path.name: digest(path) for path in vendored()}
    wrong = sorted(name for name in {*known, *found} if known.get(name) != found.get(name))
    if wrong:
        print(f"Not as they were brought from npm: {', '.join(wrong)}; run: python .ci/vendor.py")
    return 1 if wrong else 0


def bring(library: dict[str, Any], imports: dict[str, str]) -> None:
    """Download one library, check it against its hash and write its files."""
    package = download(library["name"], library["version"], library["integrity"])
    for source, target in library["files"].items():
        text = package.extractfile(f"package/{source}").read().decode()  # type: ignore[union-attr]
        (FOLDER / target).write_text(adapted(text, imports))


def download(name: str, version: str, integrity: str) -> tarfile.TarFile:
    """A library's tarball from npm. Raises ``SystemExit`` when it is another than expected."""
    url = f"{REGISTRY}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 - a constant https address
        data = response.read()
    if base64.b64encode(hashlib.sha512(data).digest()).decode() != integrity.removeprefix("sha512-"):
        raise SystemExit(f"{url} is not the file that libraries.json expects")
    return tarfile.open(fileobj=io.BytesIO(data))


def adapted(text: str, imports: dict[str, str]) -> str:
    """Imports by path, which need no import map, and no word of source maps that aren't here."""
    for name, path in imports.items():
        for quote in "\"'":
            text = text.replace(f"from{quote}{name}{quote}", f"from{quote}{path}{quote}")
    before, mark, _ = text.rpartition("//# sourceMappingURL=")
    return (before if mark else text).rstrip() + "\n"


def vendored() -> list[Path]:
    """The files brought, in order."""
    return sorted(path for path in FOLDER.iterdir() if path.suffix != ".json")


def digest(path: Path) -> str:
    """A file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
