"""When a worker gives up on its children, and what it says then."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tasks.engine.errors import NO_MEMORY
from tasks.worker.ending.crash_loop import MAX_DEATHS, CrashLoop
from tasks.worker.ending.diagnosis import Circumstances, Death, explain_deaths, explain_refusal
from tasks.worker.ending.model_file import ModelFile
from tasks.worker.ending.refusal import Refusal
from tasks.worker.ending.stages import Stages

pytestmark = pytest.mark.unit

AROUND = Circumstances("", "9 MiB needed; 8 MiB available", "x86_64 avx2 fma")
CHANGE = "The model file m.gguf is gone since the worker loaded it."
CHANGED = Circumstances(CHANGE, AROUND.memory, AROUND.processor)


# ---- the policy ---------------------------------------------------------------------------------


def test_pauses_grow_until_there_is_no_prospect():
    loop = CrashLoop(max_deaths=5, first_pause_s=0.2)
    assert [loop.note_death(0, now=0) for _ in range(5)] == [0.0, 0.2, 0.4, 0.8, None]


def test_a_place_starts_nothing_before_its_pause_is_over():
    loop = CrashLoop()
    assert loop.may_start(0, now=10)
    loop.note_death(0, now=10)
    assert loop.may_start(0, now=10)
    pause = loop.note_death(0, now=10)
    assert pause
    assert not loop.may_start(0, now=10)
    assert loop.may_start(1, now=10)
    assert loop.may_start(0, now=10 + pause)


def test_a_place_that_was_given_up_starts_nothing_more():
    loop = CrashLoop()
    for _ in range(MAX_DEATHS):
        loop.note_death(0, now=0)
    assert not loop.may_start(0, now=1e9)


def test_deaths_count_by_place_and_until_a_child_is_ready():
    loop = CrashLoop(max_deaths=2)
    assert loop.note_death(0, now=0) is not None
    assert loop.note_death(1, now=0) is not None
    loop.note_ready(0)
    assert loop.note_death(0, now=0) is not None
    assert loop.note_death(1, now=0) is None


# ---- the message --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE])
def test_a_fault_names_the_processor_and_the_repair(number: signal.Signals):
    text = explain_deaths(5, Death(-number, "computing the first batch"), AROUND)
    assert "5 children in a row" in text
    assert f"by {number.name} (" in text
    assert "while computing the first batch" in text
    assert "`inference-server doctor --repair`" in text
    assert text.endswith("The processor: x86_64 avx2 fma.")


def test_a_killed_child_names_the_memory_and_its_settings():
    text = explain_deaths(5, Death(-signal.SIGKILL, "making the context"), AROUND)
    assert AROUND.memory in text
    assert "--slots, --n-ctx or --workers" in text
    assert "--repair" not in text


def test_a_changed_file_explains_every_death():
    for status in (-signal.SIGBUS, -signal.SIGKILL, 1):
        text = explain_deaths(5, Death(status, ""), CHANGED)
        assert f"{CHANGE} Start the worker again" in text
        assert "--repair" not in text
        assert "memory ran out" not in text


def test_an_exit_status_and_an_unknown_signal():
    assert "by exit status 3 while" in explain_deaths(5, Death(3, "x"), AROUND)
    assert str(Death(-99, "")) == "signal 99"


def test_a_refusal_gives_its_reason_and_the_memory_only_where_it_matters():
    assert explain_refusal("the file is bad.", AROUND) == "The worker can't serve: the file is bad."
    assert AROUND.memory in explain_refusal(f"{NO_MEMORY} 4 sequences", AROUND)
    assert CHANGE in explain_refusal("m.gguf: no such file", CHANGED)


# ---- what the policy and the message use --------------------------------------------------------


def test_a_childs_note_outlives_it():
    stages = Stages()
    child = multiprocessing.get_context("fork").Process(target=stages.note, args=(1, "loading"))
    child.start()
    child.join()
    assert (stages.read(0), stages.read(1)) == ("", "loading")
    stages.note(1, "é" * 100)
    assert stages.read(1).startswith("é" * 32)
    stages.note(1, "x")
    assert stages.read(1) == "x"
    assert stages.read(2) == ""


def test_a_reason_waits_until_somebody_listens():
    refusal = Refusal()
    child = multiprocessing.get_context("fork").Process(target=refusal.say, args=("x" * 10_000,))
    child.start()
    child.join()
    refusal.say("later")
    assert set(refusal.wait()) == {"x"}


def test_a_file_that_changes(tmp_path: Path):
    path = tmp_path / "m.gguf"
    path.write_text("one")
    file = ModelFile.at(path)
    assert file.change() == ""
    path.write_text("other")
    assert "has changed" in file.change()
    path.unlink()
    assert "is gone" in file.change()
    assert ModelFile.at(path).change() == ""


def test_another_file_in_its_place_is_a_change(tmp_path: Path):
    path, other = tmp_path / "m.gguf", tmp_path / "new"
    path.write_text("one")
    file = ModelFile.at(path)
    other.write_text("two")
    other.replace(path)
    assert f"{path} has changed" in file.change()


@pytest.mark.parametrize(
    ("happens", "is_damaged"),
    [
        (lambda path: os.truncate(path, 10), True),
        (lambda path: path.write_bytes(bytes(100_000)), True),
        (lambda path: path.write_bytes(path.read_bytes()), False),
        (lambda path: path.touch(), False),
        (lambda path: path.open("ab").write(b"more"), False),
        (lambda path: path.unlink(), False),
        (lambda path: path.with_name("other").rename(path), False),
    ],
    ids=["cut short", "overwritten", "written again", "touched", "longer", "deleted", "replaced"],
)
def test_only_a_file_whose_pages_are_not_the_models_any_more_is_damaged(happens, is_damaged, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"model" * 20_000)
    (tmp_path / "other").write_bytes(b"other")
    file = ModelFile.at(path)
    assert not file.is_damaged()
    happens(path)
    assert file.is_damaged() is is_damaged
