"""Whatever is killed, in whatever order: never two Valkeys on a folder, no orphan; the next start works."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import permutations
from pathlib import Path

import psutil
import pytest

from service.supervisor.programs import valkey
from tests.chaos.forms import number
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

ROLES = ("keeper", "supervisor", "Valkey", "worker", "api")
Start = Callable[[Path], "Small"]
ORDERS = list(permutations(ROLES))
SCRIPT = Path(__file__).with_name("small_service.py")


class Small:
    """A small service with its own process."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(state)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.told: list[str] = []

    def wait_up(self) -> Small:
        """Return when all its processes are there."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(line.strip())
            if line == "up\n":
                wait_until(lambda: all(map(self.pid_of, ROLES)) and len(deaf_of(self.state)) >= 2)
                return self
        raise AssertionError(self.told)

    def pid_of(self, role: str) -> int | None:
        if role == "supervisor":
            return self.process.pid
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                if is_role(child.pid, role):
                    return child.pid
        return None

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services; what a failed test leaves is killed."""
    started: list[Small] = []

    def make(state: Path) -> Small:
        started.append(Small(state))
        return started[-1]

    yield make
    for service in started:
        service.process.kill()
        service.process.wait()


def is_role(pid: int, role: str) -> bool:
    command = command_of(pid)
    if role == "Valkey":
        return is_valkey(pid)
    return any(part.endswith("keeper.py") for part in command) if role == "keeper" else command[5:6] == [role]


def command_of(pid: int) -> list[str]:
    """The command line; empty when it has ended. Read anew each time: a process becomes another program."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def is_valkey(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink() == valkey.binary().resolve()
    return False


def valkeys(state: Path) -> list[int]:
    """The Valkeys whose working directory is the state's folder."""
    found = []
    for pid in filter(is_valkey, psutil.pids()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cwd").readlink() == state / "valkey":
                found.append(pid)
    return found


def left_of(state: Path) -> list[str]:
    """The command lines of all processes that belong to the state."""
    commands = {pid: " ".join(command_of(pid)) for pid in psutil.pids()}
    return [f"{pid} {command}" for pid, command in commands.items() if str(state) in command]


def deaf_of(state: Path) -> list[str]:
    """The children that would outlive everything."""
    return [each for each in left_of(state) if " deaf " in each]


@contextmanager
def at_most_one_valkey(state: Path) -> Iterator[None]:
    """Look all the time."""
    is_over, most = threading.Event(), [0]

    def look() -> None:
        while not is_over.is_set():
            most[0] = max(most[0], len(valkeys(state)))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
    assert most[0] == 1


def kill(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def orders(count: int) -> list[tuple[str, ...]]:
    """The order of the report (the keeper, then the supervisor), and others by chance."""
    return [ROLES, *random.Random(5).sample(ORDERS, count - 1)]


def check(order: tuple[str, ...], start: Start, state: Path) -> None:
    first = start(state).wait_up()
    with at_most_one_valkey(state):
        pids = {role: first.pid_of(role) for role in ROLES}
        for role in order:
            kill(pids[role])
        second = start(state).wait_up()
        assert len(valkeys(state)) == 1
    first.process.wait()
    second.end()
    wait_until(lambda: not left_of(state))


@pytest.mark.parametrize("order", orders(6), ids="-".join)
def test_killed_in_an_order(order: tuple[str, ...], start: Start, tmp_path: Path):
    check(order, start, tmp_path)


@pytest.mark.chaos
@pytest.mark.parametrize("order", orders(int(number("CHAOS_ORDERS", 120))), ids="-".join)
def test_killed_in_every_order(order: tuple[str, ...], start: Start, tmp_path: Path):
    check(order, start, tmp_path)


@pytest.mark.parametrize("num", range(1, 5))
def test_nothing_is_left_when_only_some_are_killed(num: int, start: Start, tmp_path: Path):
    """Without a next start: what was not killed ends with the supervisor."""
    service = start(tmp_path).wait_up()
    for role in [
        *random.Random(num).sample([r for r in ROLES if r not in ("supervisor", "keeper")], num - 1)
    ]:
        kill(service.pid_of(role))
    kill(service.process.pid)
    service.process.wait()
    wait_until(lambda: not left_of(tmp_path))


def test_a_killed_keeper_is_replaced_and_does_its_work(start: Start, tmp_path: Path):
    service = start(tmp_path).wait_up()
    keeper = service.pid_of("keeper")
    kill(keeper)
    wait_until(lambda: service.pid_of("keeper") not in (None, keeper))
    assert service.process.stdout is not None
    assert "keeper" in service.process.stdout.readline()
    kill(service.process.pid)
    service.process.wait()
    wait_until(lambda: not left_of(tmp_path))


def test_what_a_killed_service_left_is_ended_with_its_number(start: Start, tmp_path: Path):
    """With keeper and supervisor gone, the deaf children are left; they hold the lock."""
    service = start(tmp_path).wait_up()
    for role in ("keeper", "supervisor"):
        kill(service.pid_of(role))
    service.process.wait()
    wait_until(lambda: not valkeys(tmp_path))
    assert len(left_of(tmp_path)) == 2
    again = start(tmp_path).wait_up()
    assert f"Ending what the killed service {service.process.pid} left behind" in again.told[0]
    again.end()
    wait_until(lambda: not left_of(tmp_path))
