"""A service of a real Valkey and two small parts; ``python small_service.py STATE`` prints ``up`` at last.

Each small part has a child that would outlive everything: it ignores signals and its parent's end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from service.supervisor.errors import ServiceError
from service.supervisor.guard.keeper_link import KeeperLink
from service.supervisor.programs import valkey
from service.supervisor.programs.part import Part
from service.supervisor.signals import STOPPING, Signals
from service.supervisor.state import locked
from service.supervisor.supervisor import Supervisor

SMALL = """
import signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-I", "-S", "-c", code, "deaf", *sys.argv[1:]], close_fds=False)
time.sleep(600)
"""


def parts(state: Path) -> list[Part]:
    """The embedded Valkey, ``worker`` and ``api``; each shows the state folder in its command."""
    conf, socket = valkey.configure(state, 1 << 30)
    ready = valkey.answers(valkey.url_of(socket))
    server = _part("Valkey", (str(valkey.binary()), str(conf)), state)
    small = [
        _part(n, (sys.executable, "-I", "-S", "-c", SMALL, n, str(state)), state) for n in ("worker", "api")
    ]
    return [Part(**{**{f: getattr(server, f) for f in server.__slots__}, "is_ready": ready}), *small]


def _part(name: str, command: tuple[str, ...], state: Path) -> Part:
    return Part(
        name, command, os.environ, state, state / f"{name}.log", stop_timeout_s=1, told=f"Starting {name}"
    )


def tell(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def main(state: Path) -> None:
    """Run until a signal asks to end."""
    with Signals(STOPPING) as signals, locked(state, tell) as lock:
        keeper = KeeperLink(lock)
        try:
            with Supervisor(parts(state), signals, keeper, tell) as supervisor:
                tell("up")
                supervisor.watch()
        finally:
            keeper.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except ServiceError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(str(error))
