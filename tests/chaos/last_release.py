"""The last release's code, taken out of git into a separate folder, to run beside this release's code."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.chaos.cluster import Checkout

#: The commit that was released last. Change it with each release; then remove what only the release before
#: needed (:data:`tasks.store.registry.LAST_RELEASE_FIELDS`).
LAST_RELEASE = "589144ba78e17a1f34db0ebfe037b5705609ffb9"
_ROOT = Path(__file__).resolve().parents[2]
_SHIM = Path(__file__).parent / "shim"


def last_release(folder: Path) -> Checkout:
    """The last release's code in ``folder``. If git lacks it, the test is skipped; in CI it fails."""
    command = ["git", "-C", str(_ROOT), "archive", "--format=tar", LAST_RELEASE, "service", "tasks"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        told = f"git has no commit {LAST_RELEASE} (git fetch --unshallow): {archive.stderr.decode().strip()}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(told)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return Checkout(folder, {"PYTHONPATH": str(_SHIM), "OMP_NUM_THREADS": "1"})
