"""What is written beside the queue on a full disk: one line that says so, and nothing half-written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.small_disk import SmallDisk, why_not
from tests.e2e.serving import clean_environment

pytestmark = pytest.mark.integration

#: Fills the disk at its first argument, and becomes the rest.
FILL = 'cd "$0"; cat /dev/zero >ballast 2>/dev/null; dd if=/dev/zero bs=1 >>ballast 2>/dev/null; exec "$@"'


#: The code under test, which a command started elsewhere has to find.
ROOT = Path(__file__).parents[2]


@pytest.fixture
def disk(tmp_path: Path) -> SmallDisk:
    folder = tmp_path / "disk"
    folder.mkdir()
    if reason := why_not(folder):
        pytest.skip(reason)
    return SmallDisk(folder, size_mib=1)


def run(disk: SmallDisk, *command: str, before: str = "true") -> subprocess.CompletedProcess[str]:
    """Run a command on the full disk; ``before`` is a shell command that prepares it."""
    prepared = f'cd "$0"; {before}; {FILL}'
    return subprocess.run(
        [*disk.prefix, "sh", "-c", prepared, str(disk.folder), *command],
        capture_output=True,
        text=True,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        check=False,
    )


def python(disk: SmallDisk, code: str, before: str = "true") -> subprocess.CompletedProcess[str]:
    return run(disk, sys.executable, "-c", code, before=before)


@pytest.mark.parametrize("before", ["true", "mkdir s; echo 123 >s/lock"])
def test_a_service_does_not_start_without_space(disk: SmallDisk, before: str):
    code = f"""
from pathlib import Path
from service.supervisor.local import running
from service.supervisor.programs.plan import Plan
from service.supervisor.signals import Signals
from service.supervisor.errors import ServiceError
plan = Plan(Path({str(disk.folder / "s")!r}), {{}}, "http://127.0.0.1:1", "m", 0)
try:
    with Signals() as signals, running(plan, signals, print):
        print("it runs")
except ServiceError as error:
    print(error)
"""
    done = python(disk, code, before=before)
    assert done.stdout.count("No space left on device") == 1, done
    assert "state folder" in done.stdout


def test_settings_that_can_not_be_written_are_told_and_the_file_stays(disk: SmallDisk):
    code = """
import sys
from pathlib import Path
import click
from service.cli.common.write_settings import write_settings
try:
    write_settings(Path("settings.toml"), {"workers": 3, "model": "x" * 5000}, "tune")
except click.ClickException as error:
    print(error.message)
print(sorted(path.name for path in Path().iterdir()), Path("settings.toml").read_text())
"""
    told, left = python(disk, code, before="echo 'slots = 4' >settings.toml").stdout.split("\n", 1)
    assert told.startswith("Can't write settings.toml: No space left on device. It would say: workers = 3, ")
    assert left.strip() == "['ballast', 'settings.toml'] slots = 4"


def test_a_result_that_can_not_be_kept_leaves_nothing(disk: SmallDisk):
    code = """
from pathlib import Path
from tasks.engine.kept import keep, read
keep(Path("known.json"), {"x": "y" * 5000})
print(sorted(path.name for path in Path().iterdir()), read(Path("known.json")))
"""
    done = python(disk, code, before="mkdir cache")
    assert done.stdout == "['ballast', 'cache'] None\n", done


def test_a_part_runs_without_a_log(disk: SmallDisk):
    code = """
import os
from pathlib import Path
from service.supervisor.guard.keeper_link import KeeperLink
from service.supervisor.part_process import Child
from service.supervisor.programs.part import Part
from tests.waiting import wait_until
lock = os.open("/dev/null", os.O_RDONLY)
part = Part("x", ("/bin/sh", "-c", "echo hello; exit 3"), {}, Path("/"), Path("new/x.log"), 1, "")
child = Child(part, KeeperLink(lock))
wait_until(lambda: not child.is_running)
print(child.death(), child.last_lines())
"""
    done = python(disk, code)
    assert done.stdout.startswith("x ended (exit code 3) (no log: "), done


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_command_that_can_not_print_goes_on(form: str, tmp_path: Path):
    code = f"""
import sys
from service.cli.common.voice import voice_for
from tasks.settings import BrokerSettings
voice = voice_for(BrokerSettings(log_format={form!r}))
for _ in range(3):
    voice.tell("x" * 10_000)
    voice.show("api", "{{" + "x" * 10_000)
with open(sys.argv[1], "w") as file:
    file.write("got here")
"""
    reached = tmp_path / "reached"
    with Path("/dev/full").open("wb") as full:
        subprocess.run([sys.executable, "-c", code, str(reached)], stdout=full, stderr=full, check=False)
    assert reached.read_text() == "got here"
