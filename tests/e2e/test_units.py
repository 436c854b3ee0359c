"""The programs work within the bounds of their systemd units, and the bounds are tight."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from redis import Redis

from service.supervisor.programs.probe import answers_200
from tests.e2e import confined
from tests.e2e.serving import COMMAND, QUICK_START, clean_environment
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
#: What ``systemd-analyze security`` may say at most: 0 is closed, 10 is open.
MOST = 2.0


@contextmanager
def running(part: str, log: Path, *arguments: str, **variables: str) -> Iterator[None]:
    """``inference-server api`` or ``worker`` as its unit confines it."""
    command = [sys.executable, confined.__file__, str(DEPLOY / f"inference-{part}.service"), *COMMAND, part]
    env = {**clean_environment(), **QUICK_START, **variables}
    with log.open("w") as file:
        process = subprocess.Popen([*command, *arguments], stdout=file, stderr=file, env=env)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


@pytest.mark.skipif(confined.why_not() is not None, reason=str(confined.why_not()))
def test_both_programs_work_within_their_bounds(
    valkey_url: str, redis: Redis, model_path: Path, tmp_path: Path
):
    port = free_port()
    shared = ("--redis-url", valkey_url, "--model", str(model_path))
    shape = ("--workers", "1", "--slots", "2", "--threads", "2", "--n-ctx", "512")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # so that the kernels are proved, too
    worker, api = tmp_path / "worker.log", tmp_path / "api.log"
    with (
        running("worker", worker, *shared, *shape, **cache),
        running("api", api, *shared, "--port", str(port)),
    ):
        url = f"http://127.0.0.1:{port}"
        wait_until(answers_200(f"{url}/readyz"), timeout=90)
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 4}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert httpx.get(f"{url}/metrics").status_code == 200
    for log in (worker, api):
        assert not re.search("not permitted|Traceback|warning", log.read_text()), log.read_text()


@pytest.mark.skipif(confined.why_not() is not None, reason=str(confined.why_not()))
@pytest.mark.parametrize("code", ["import mmap; mmap.mmap(-1, 4096, prot=7)", "import os; os.chroot('/')"])
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_the_bounds_hold(unit: Path, code: str):
    command = [sys.executable, confined.__file__, str(unit), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Permission" in done.stderr or "not permitted" in done.stderr, done


@pytest.mark.skipif(confined.why_not() is not None, reason=str(confined.why_not()))
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_the_units_are_closed(unit: Path):
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    score = re.search(r"exposure level for \S+: ([\d.]+)", told)
    assert score, told
    assert float(score[1]) < MOST
