"""Which kernel sets are tried, in which order, and what a trial's result means."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.engine import kept
from tasks.engine.errors import KernelsError, ModelError
from tasks.engine.kernels.judge import fault
from tasks.engine.kernels.proof import HUNG_FOR_S, Proof, Shape, prove, proven
from tasks.engine.kernels.trial import Plan
from tasks.engine.kernels.watch import HUNG, Outcome
from tasks.engine.llama.kernel_sets import KernelSet, candidates, lost, reference

pytestmark = pytest.mark.unit

VARIANTS = ["sapphirerapids", "zen4", "haswell", "x64"]


@pytest.fixture
def shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shape:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    return Shape(model, 0, slots=4, n_ctx=256, n_batch=64, threads=2)


class Trials:
    """Trials that fail for some sets; keeps the sets that were tried."""

    def __init__(self, *, good: KernelSet | None, failure: Outcome) -> None:
        self._good, self._failure = good, failure
        self.tried: list[KernelSet] = []

    def __call__(self, plan: Plan, limit_s: float) -> Outcome:
        if plan.kernels is None:
            return Outcome(result={"took_s": 0.1}, variants=tuple(VARIANTS))
        self.tried.append(KernelSet(**plan.kernels))
        return Outcome(result={"fault": None}) if self.tried[-1] == self._good else self._failure


def test_quicker_sets_come_first_and_one_thread_last():
    sets = candidates(VARIANTS, 2)
    assert sets[0] == KernelSet("sapphirerapids", True, 2)
    assert sets[1] == KernelSet("zen4", True, 2)
    assert sets[2] == KernelSet("sapphirerapids", False, 2)
    assert sets[-1] == KernelSet("haswell", False, 1)
    assert len(set(sets)) == len(sets)


def test_a_library_with_kernels_of_its_own():
    assert candidates([], 2) == (
        KernelSet("", True, 2),
        KernelSet("", False, 2),
        KernelSet("", True, 1),
        KernelSet("", False, 1),
    )
    assert candidates([], 1) == (KernelSet("", True, 1), KernelSet("", False, 1))


def test_an_old_processor_is_compared_with_what_it_has():
    assert reference(["sse42", "x64"], 2) == KernelSet("sse42", False, 2)
    assert reference(["armv8.6_1", "armv8.2_1"], 2).variant == "armv8.2_1"
    assert reference([], 2).variant == ""


@pytest.mark.parametrize("good", candidates(VARIANTS, 2)[1:], ids=str)
def test_the_first_set_that_computes_serves_and_the_rest_is_named(shape: Shape, good: KernelSet):
    trials = Trials(good=good, failure=Outcome(failure="ended with SIGSEGV while computing one row"))
    proof = prove(shape, trials)
    assert proof.chosen == good == trials.tried[-1]
    assert [each.kernels for each in proof.rejected] == trials.tried[:-1]
    assert "SIGSEGV" in proof.warning
    assert lost(trials.tried[0], good) in proof.warning


def test_nonsense_is_a_failure_too(shape: Shape):
    good = candidates(VARIANTS, 2)[1]
    proof = prove(shape, Trials(good=good, failure=Outcome(result={"fault": "computed NaN"})))
    assert proof.chosen == good
    assert "computed NaN" in proof.warning


def test_where_the_plainest_kernels_hang_only_one_thread_is_tried(shape: Shape):
    tried: list[KernelSet] = []

    def trial(plan: Plan, limit_s: float) -> Outcome:
        if plan.kernels is None:
            return Outcome(failure=f"{HUNG} while computing one row", variants=tuple(VARIANTS))
        tried.append(KernelSet(**plan.kernels))
        return Outcome(result={"fault": None})

    proof = prove(shape, trial)
    assert tried == [proof.chosen] == [KernelSet("sapphirerapids", True, 1)]
    assert "1 of 2 threads" in proof.warning


def test_memory_that_runs_out_is_no_fault_of_kernels(shape: Shape):
    trials = Trials(good=None, failure=Outcome(failure="ended with SIGKILL while making the context"))
    with pytest.raises(ModelError, match="lower --n-ctx, --slots or --workers"):
        prove(shape, trials)
    assert len(trials.tried) == 1


def test_what_was_found_is_found_again_without_a_trial(shape: Shape):
    found = prove(shape, Trials(good=candidates(VARIANTS, 2)[2], failure=Outcome(failure="hung")))
    assert proven(shape) == found  # a trial of this file would raise
    shape.model.write_bytes(b"GGUF, another one")
    with pytest.raises(ModelError):
        proven(shape)


def test_a_set_that_hung_gets_another_chance_after_a_day(shape: Shape):
    sets = candidates(VARIANTS, 2)
    prove(shape, Trials(good=sets[1], failure=Outcome(failure=f"{HUNG} while computing one row")))
    assert proven(shape).chosen == sets[1]
    (path,) = kept.kept_path("kernels").parent.glob("kernels-*")
    old = path.stat().st_mtime - HUNG_FOR_S - 1
    os.utime(path, (old, old))
    with pytest.raises(ModelError):
        proven(shape)  # this file is tried again, which must fail


def test_no_set_at_all_is_an_error_that_names_each(shape: Shape):
    trials = Trials(good=None, failure=Outcome(failure="ended with SIGILL while computing one row"))
    with pytest.raises(KernelsError) as raised:
        prove(shape, trials)
    told = str(raised.value)
    assert told.count("SIGILL") == len(candidates(VARIANTS, 2))
    assert "doctor --repair" in told
    assert (
        kept.read(next(iter([*Path(kept.kept_path("kernels")).parent.glob("kernels-*")]), Path("none")))
        is None
    )


@pytest.mark.parametrize("raw", [None, [], {}, {"chosen": {}}, {"chosen": {"x": 1}, "rejected": []}, "text"])
def test_what_can_not_be_read_is_not_there(raw: Any):
    assert Proof.from_json(raw) is None


def test_a_path_holds_in_every_folder(shape: Shape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(shape.model.parent)
    found = prove(shape, Trials(good=candidates(VARIANTS, 2)[0], failure=Outcome()))
    relative = Shape(**{**asdict(shape), "model": Path(shape.model.name)})
    assert relative.plan(Path("e"), None).model == str(shape.model)
    assert proven(relative) == found


def test_a_row_is_judged_by_the_plainest_kernels():
    rng = np.random.default_rng(1)
    expected = rng.normal(size=(3, 1000)).astype(np.float32)
    assert fault(expected, expected) is None
    assert fault(expected, None) is None
    assert fault(expected + rng.normal(scale=0.01, size=expected.shape).astype(np.float32), expected) is None
    assert "row 0" in str(fault(-expected, expected))
    broken = expected.copy()
    broken[2, 5] = np.nan
    assert fault(broken, expected) == "computed NaN"
    tie = expected.copy()
    first, second = np.argsort(expected[1])[-2:][::-1]
    expected[1, second] = expected[1, first] - 0.001
    tie[1, second] = expected[1, first] + 0.001
    assert fault(tie, expected) is None
