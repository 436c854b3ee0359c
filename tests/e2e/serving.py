"""A service under test: the real command, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from service.supervisor.programs.probe import answers_200
from service.supervisor.programs.valkey import url_of
from tests.ports import free_port
from tests.waiting import wait_until

#: The installed command's module, run by this interpreter.
COMMAND = (sys.executable, "-c", "from service.cli import main; main(prog_name='inference-server')")

#: Only the session's shared service measures step costs: measuring at each start would take minutes.
QUICK_START = {"INFERENCE_STEP_SHAPING": "false"}


def clean_environment() -> dict[str, str]:
    """This environment without the settings of a service, and with Python's cache of compiled modules.

    A service is several processes; without the cache each would compile every module.
    """
    ours = ("INFERENCE_", "REDIS_URL", "PYTHONDONTWRITEBYTECODE")
    kept = ("INFERENCE_MODELS_DIR",)
    rest = {name: value for name, value in os.environ.items() if name in kept or not name.startswith(ours)}
    return {**rest, "INFERENCE_SETTINGS": ""}


def run_command(
    *arguments: str, timeout: float = 120, models_dir: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``inference-server`` to its end; ``models_dir`` is where it looks for models and puts them."""
    folder = {} if models_dir is None else {"INFERENCE_MODELS_DIR": str(models_dir)}
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment() | QUICK_START | folder,
        timeout=timeout,
        check=False,
    )


class Served:
    """``inference-server serve`` with its own state folder; ``options`` are added to its command."""

    def __init__(self, state: Path, *options: str, port: int | None = None, **variables: str) -> None:
        self.state = state
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        state.mkdir(parents=True, exist_ok=True)
        self.output = state / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *self.prefix(),
                    *COMMAND,
                    "serve",
                    "--state-dir",
                    str(state),
                    "--port",
                    str(self.port),
                    *options,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**clean_environment(), **QUICK_START, **variables},
                start_new_session=True,
            )

    def prefix(self) -> tuple[str, ...]:
        """What comes before the command, and becomes it."""
        return ()

    def wait_ready(self) -> Served:
        """Return when it takes requests; fail with its output when it ends instead."""
        probe = answers_200(f"{self.url}/readyz")
        wait_until(lambda: self.process.poll() is not None or probe(), timeout=90)
        assert self.process.poll() is None, self.output.read_text()
        wait_until(lambda: "Ready on" in self.output.read_text())
        return self

    @property
    def redis_url(self) -> str:
        """The address of its Valkey, as ``api`` and ``worker`` take it."""
        conf = dict(line.split(" ", 1) for line in (self.state / "valkey.conf").read_text().splitlines())
        return url_of(Path(conf["unixsocket"].strip('"')))

    def family(self) -> list[psutil.Process]:
        """Every process that belongs to it, itself first."""
        leader = psutil.Process(self.process.pid)
        return [leader, *leader.children(recursive=True)]

    def part(self, word: str) -> psutil.Process:
        """The part whose command has ``word``: ``valkey-server``, ``celery`` or ``gunicorn``."""
        return next(
            child for child in self.family()[0].children() if any(word in a for a in command_of(child))
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal that asks it to end, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=90)


def are_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of ``processes`` runs any more."""
    return not any(map(_runs, processes))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; empty when it has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie raises this, too
        return []
