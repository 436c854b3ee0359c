"""The supervisor with small real processes: order, restarts, ends, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from service.supervisor.backoff import Backoff
from service.supervisor.errors import HopelessError, ServiceError
from service.supervisor.follow import Follower
from service.supervisor.guard.keeper_link import KeeperLink
from service.supervisor.holders import holders_of
from service.supervisor.programs.part import Part
from service.supervisor.signals import Signals
from service.supervisor.state import locked
from service.supervisor.supervisor import Supervisor
from tasks.contract.exit_status import HOPELESS
from tests.waiting import wait_until

pytestmark = pytest.mark.unit

#: Notes its start and its SIGTERM in a shared file, and has a child that would outlive it.
PROGRAM = """
import signal, subprocess, sys, time
name, journal = sys.argv[1:]
def note(word):
    with open(journal, "a") as file:
        file.write(f"{name} {word}\\n")
def end(*_):
    note("ended")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
note(f"started {child.pid}")
time.sleep(600)
"""

#: Notes that it was asked to end, and does not end.
STUBBORN = """
import signal, sys, time
def note(text):
    with open(sys.argv[2], "a") as file:
        file.write(text)
signal.signal(signal.SIGTERM, lambda *_: note("asked\\n"))
note("s started 0\\n")
while True:
    time.sleep(600)
"""


class Bench:
    """A place to run parts in."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.journal.touch()
        self.keeper = KeeperLink(lock)
        self.told: list[str] = []

    def part(self, name: str, code: str = PROGRAM, is_ready: Callable[[], bool] | None = None) -> Part:
        ready = is_ready or (lambda: any(line.startswith(f"{name} started") for line in self.lines()))
        return Part(
            name=name,
            command=(sys.executable, "-c", code, name, str(self.journal)),
            env=os.environ,
            cwd=self.folder,
            log=self.folder / f"{name}.log",
            stop_timeout_s=10,
            told=f"Starting {name}",
            is_ready=ready,
        )

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines()

    def grandchildren(self) -> list[int]:
        return [int(line.split()[2]) for line in self.lines() if " started " in line]

    def run(self, *parts: Part, signals: Signals) -> Supervisor:
        return Supervisor(parts, signals, self.keeper, self.told.append)


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with locked(tmp_path) as lock:
        made = Bench(tmp_path, lock)
        yield made
        made.keeper.close()


def test_starts_in_order_and_ends_in_reverse(bench: Bench):
    with Signals() as signals, bench.run(bench.part("a"), bench.part("b"), signals=signals):
        pass
    words = [" ".join(line.split()[:2]) for line in bench.lines()]
    assert words == ["a started", "b started", "b ended", "a ended"]
    assert bench.told == ["Starting a", "Starting b"]


def test_what_a_part_started_ends_with_it(bench: Bench):
    with Signals() as signals, bench.run(bench.part("a"), signals=signals):
        assert all(is_alive(pid) for pid in bench.grandchildren())
    wait_until(lambda: not any(is_alive(pid) for pid in bench.grandchildren()))


def test_a_part_that_dies_is_started_again(bench: Bench):
    with Signals((signal.SIGUSR1,)) as signals, bench.run(bench.part("a"), signals=signals) as supervisor:
        helper = threading.Thread(target=kill_then_end, args=[bench])
        helper.start()
        supervisor.watch()
        helper.join()
    assert "The a ended (SIGKILL); starting it again." in bench.told
    assert [line.split()[1] for line in bench.lines()] == ["started", "started", "ended"]
    wait_until(lambda: not any(is_alive(pid) for pid in bench.grandchildren()))


def kill_then_end(bench: Bench) -> None:
    parent = psutil.Process(bench.grandchildren()[0]).parent()
    assert parent is not None
    parent.kill()
    wait_until(lambda: len(bench.grandchildren()) == 2)
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_part_that_cannot_start_is_shown(bench: Bench):
    code = "print('no such thing as a port'); raise SystemExit(3)"
    with (
        pytest.raises(ServiceError, match=r"(?s)broken ended \(exit code 3\) while starting:.*no such thing"),
        Signals() as signals,
        bench.run(bench.part("a"), bench.part("broken", code, lambda: False), signals=signals),
    ):
        pytest.fail("it must not get here")
    assert bench.lines()[-1] == "a ended"


def test_a_program_that_is_not_there(bench: Bench):
    missing = Part("x", ("/nonexistent/program",), {}, bench.folder, bench.folder / "x.log", 1, "Starting x")
    with pytest.raises(ServiceError, match="Can't start the x"), Signals() as signals:
        bench.run(missing, signals=signals).__enter__()


def test_a_part_that_always_dies_ends_everything(bench: Bench):
    dying = bench.part("dying", "print('out of luck')", lambda: True)
    with (
        pytest.raises(ServiceError, match=r"(?s)too often:.*out of luck"),
        Signals() as signals,
        bench.run(bench.part("a"), dying, signals=signals) as supervisor,
    ):
        supervisor.watch()
    assert bench.lines()[-1] == "a ended"


HOPELESS_CODE = f"print('much more'); raise SystemExit({HOPELESS})"


@pytest.mark.parametrize("has_words", [True, False])
def test_a_part_that_can_not_go_on_is_not_tried_again(bench: Bench, has_words: bool):
    last_words = (lambda _age_s: "no luck: change it") if has_words else (lambda _age_s: "")
    hopeless = replace(bench.part("hopeless", HOPELESS_CODE, lambda: True), last_words=last_words)
    with (
        pytest.raises(HopelessError) as caught,
        Signals() as signals,
        bench.run(bench.part("a"), hopeless, signals=signals) as supervisor,
    ):
        supervisor.watch()
    assert (str(caught.value) == "no luck: change it") == has_words
    assert ("much more" in str(caught.value)) != has_words
    assert not any("starting it again" in line for line in bench.told)
    assert bench.lines()[-1] == "a ended"


def test_a_part_that_can_not_go_on_ends_the_start_of_the_others(bench: Bench):
    hopeless = replace(bench.part("hopeless", HOPELESS_CODE, lambda: True), last_words=lambda _: "no luck")
    with (
        pytest.raises(HopelessError, match=r"^no luck$"),
        Signals() as signals,
        bench.run(hopeless, bench.part("waits", is_ready=lambda: False), signals=signals),
    ):
        pytest.fail("it must not get here")


def test_a_second_request_to_end_ends_at_once(bench: Bench):
    part = bench.part("s", STUBBORN)
    with Signals((signal.SIGUSR1,)) as signals:
        with bench.run(part, signals=signals) as supervisor:
            os.kill(os.getpid(), signal.SIGUSR1)
            supervisor.watch()
            helper = threading.Thread(target=ask_again, args=[bench])
            helper.start()
        helper.join()
    assert bench.lines()[-1] == "asked"


def ask_again(bench: Bench) -> None:
    wait_until(lambda: bench.lines()[-1] == "asked")
    os.kill(os.getpid(), signal.SIGUSR1)


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path):
    """The state also stays locked until all processes are gone."""
    script = f"""
import os, sys, time
from pathlib import Path
from service.supervisor.state import locked
from service.supervisor.signals import Signals
from tests.unit.test_cli_supervisor import Bench
with locked(Path({str(tmp_path)!r})) as lock, Signals() as signals:
    bench = Bench(Path({str(tmp_path)!r}), lock)
    with bench.run(bench.part("a"), bench.part("b"), signals=signals):
        print("up", flush=True)
        time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 5
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not any(is_alive(child.pid) for child in family))
    with locked(tmp_path):
        pass


def test_a_state_folder_has_one_service(tmp_path: Path):
    with (
        locked(tmp_path),
        pytest.raises(ServiceError, match=f"Process {os.getpid()} already serves"),
        locked(tmp_path),
    ):
        pytest.fail("it must not get here")
    with locked(tmp_path):
        pass


def test_backoff_grows_and_gives_up():
    backoff = Backoff(max_deaths=4, window_s=60, first_s=0.1)
    assert [backoff.delay_after_death(now) for now in (0, 1, 2, 3, 4)] == [0.0, 0.2, 0.4, 0.8, None]


def test_backoff_forgets():
    backoff = Backoff(max_deaths=2, window_s=60)
    assert [backoff.delay_after_death(now) for now in (0, 100, 200, 300)] == [0.0, 0.0, 0.0, 0.0]


def test_follower_shows_whole_new_lines(tmp_path: Path):
    log, shown = tmp_path / "api.log", []
    log.write_text("old\n")
    follower = Follower([log, tmp_path / "missing.log"], lambda part, line: shown.append((part, line)))
    with log.open("a") as file:
        file.write("one\ntw")
    follower.poll()
    with log.open("a") as file:
        file.write("o\n")
    follower.poll()
    follower.poll()
    assert shown == [("api", "one"), ("api", "two")]


def test_holders_are_told_from_those_who_wait(tmp_path: Path):
    """Only what shares the locked open file holds the lock, and only one process has taken it."""
    waits = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    assert holders_of(tmp_path / "lock") == []
    with locked(tmp_path) as lock:
        inherits = subprocess.Popen(["sleep", "600"], pass_fds=[lock])
        other = subprocess.Popen(["sleep", "600"], pass_fds=[waits])
        try:
            wait_until(lambda: len(holders_of(tmp_path / "lock")) == 2)
            found = {holder.pid: holder.has_taken for holder in holders_of(tmp_path / "lock")}
        finally:
            for process in (inherits, other):
                process.kill()
                process.wait()
    os.close(waits)
    assert found == {os.getpid(): True, inherits.pid: False}
