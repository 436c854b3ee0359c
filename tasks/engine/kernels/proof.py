"""Finds the first kernel set that computes a model correctly here, or reads what an earlier start found.

This process may fork afterwards, so it loads nothing of llama.cpp.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.engine import kept
from tasks.engine.errors import KernelsError, ModelError
from tasks.engine.kernels.trial import Plan
from tasks.engine.kernels.watch import HUNG, Outcome, Run, run
from tasks.engine.llama.kernel_sets import KernelSet, candidates, lost

logger = logging.getLogger(__name__)

#: A stage may take this many times as long as the plainest kernels took for all stages, and at least
#: MIN_LIMIT_S seconds.
PATIENCE, MIN_LIMIT_S = 3.0, 4.0
#: Seconds after which a set that hung is tried again: the cause may have been a busy machine.
HUNG_FOR_S = 24 * 3600.0
#: A stage of the plainest kernels may take a second per this many bytes of the model: nothing is measured
#: before it.
_BYTES_PER_S = 20e6
#: Seconds that a GPU's driver may take to compile kernels for a device that they weren't built for.
_GPU_S = 120.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How the model will be computed: its file, the layers on the GPU, the context, and the threads.

    ``forks`` says whether a parent loads the model and its forked child computes.
    """

    model: Path
    gpu_layers: int
    slots: int
    n_ctx: int
    n_batch: int
    threads: int
    forks: bool = True

    def plan(self, expected: Path, kernels: KernelSet | None) -> Plan:
        """The plan of a trial in this shape."""
        raw = {**asdict(self), "model": str(self.model.absolute()), "expected": str(expected)}
        return Plan(**raw, kernels=None if kernels is None else asdict(kernels))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A kernel set that failed its trial, and how it failed."""

    kernels: KernelSet
    failure: str

    @property
    def may_pass(self) -> bool:
        """Whether a busy or crowded machine may be the cause: the trial hung or ended with an exit status."""
        return HUNG in self.failure or "exit status" in self.failure

    def __str__(self) -> str:
        return f"{self.kernels}: {self.failure}"


@dataclass(frozen=True, slots=True)
class Proof:
    """The kernel set that serves, and the quicker sets that were rejected before it."""

    chosen: KernelSet
    rejected: tuple[Rejected, ...] = ()

    @property
    def may_pass(self) -> bool:
        """Whether a quicker set might pass on a less busy machine."""
        return any(each.may_pass for each in self.rejected)

    @property
    def warning(self) -> str:
        """What was rejected, why, and what is lost by it; empty if the first set serves."""
        if not self.rejected:
            return ""
        failures = "; ".join(map(str, self.rejected))
        return (
            f"llama.cpp's quickest kernels fail here ({failures}), so {self.chosen} serves, without "
            f"{lost(self.rejected[0].kernels, self.chosen)}. "
            "`inference-server doctor --repair` installs llama.cpp as compiled for this machine"
        )

    def to_json(self) -> dict[str, Any]:
        """The proof as JSON, for :meth:`from_json`."""
        return asdict(self)

    @staticmethod
    def from_json(raw: Any) -> Proof | None:
        """The proof; ``None`` if ``raw`` isn't one."""
        try:
            rejected = (Rejected(KernelSet(**each["kernels"]), each["failure"]) for each in raw["rejected"])
            return Proof(KernelSet(**raw["chosen"]), tuple(rejected))
        except (KeyError, TypeError):
            return None


def proven(shape: Shape) -> Proof:
    """The proof that an earlier start kept for this model, library, machine and shape, else a new one."""
    proof = _kept(_path(shape))
    if proof is None:
        logger.info("computing the first batches with llama.cpp's kernels, to see that they work here")
        with kept.turn(shape.model):
            proof = _kept(_path(shape)) or prove(shape)
    if proof.warning:
        logger.warning("%s", proof.warning)
    logger.info("kernels: %s", proof.chosen)
    return proof


def _kept(path: Path) -> Proof | None:
    proof = Proof.from_json(kept.read(path))
    is_old = proof is not None and proof.may_pass and kept.age_s(path) > HUNG_FOR_S
    return None if is_old else proof


def prove(shape: Shape, try_out: Run = run) -> Proof:
    """Try kernel sets until one computes correctly, and keep the proof.

    Raises:
        KernelsError: no set computes correctly; the message has all failures.
        ModelError: the cause is the file or a lack of memory.
    """
    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        proof = _first_good(shape, Path(folder) / "expected.npy", try_out)
    # A proof that a busy machine may have spoiled doesn't replace an earlier one.
    if not (proof.may_pass and _kept(_path(shape))):
        kept.keep(_path(shape), proof.to_json())
    return proof


def _first_good(shape: Shape, expected: Path, try_out: Run) -> Proof:
    reference = try_out(shape.plan(expected, None), _reference_limit_s(shape))
    _failure(reference)
    limit_s = _limit_s(shape, reference)
    sets, rejected = _to_try(shape, reference)
    for kernels in sets:
        failure = _failure(try_out(shape.plan(expected, kernels), limit_s))
        if not failure:
            return Proof(kernels, tuple(rejected))
        rejected.append(Rejected(kernels, failure))
        logger.warning("kernels rejected: %s", rejected[-1])
    raise KernelsError("\n".join(_last_words(reference, rejected)))


def _to_try(shape: Shape, reference: Outcome) -> tuple[list[KernelSet], list[Rejected]]:
    """The sets to try, and any rejected at once: if the plainest kernels hang, several threads hang too."""
    sets = list(candidates(reference.variants, shape.threads))
    if shape.threads == 1 or not reference.failure.startswith(HUNG):
        return sets, []
    failure = f"the plainest kernels {reference.failure}, so sets with several threads are not tried"
    return [each for each in sets if each.threads == 1], [Rejected(sets[0], failure)]


def _limit_s(shape: Shape, reference: Outcome) -> float:
    """Seconds for a stage, from the time that the plainest kernels took or, if they failed, their limit."""
    if took_s := reference.result.get("took_s"):
        return float(max(MIN_LIMIT_S, PATIENCE * took_s))
    has_hung = reference.failure.startswith(HUNG)
    return max(MIN_LIMIT_S, _reference_limit_s(shape) / (4 if has_hung else 1))


def _failure(outcome: Outcome) -> str:
    if "SIGKILL" in outcome.failure:
        raise ModelError(
            f"the first batches were not computed: their process {outcome.failure}, which is what the system "
            "does when memory runs out; lower --n-ctx, --slots or --workers"
        )
    return outcome.failure or str(outcome.result.get("fault") or "")


def _last_words(reference: Outcome, rejected: list[Rejected]) -> Iterator[str]:
    yield "llama.cpp can't compute this model here with any of its kernels:"
    if reference.failure:
        yield f"  the plainest kernels, in a separate process: {reference.failure}"
    yield from (f"  {each}" for each in rejected)
    features = " ".join(kept.kernel_features())
    yield f"The processor has: {features or 'features that this system does not list'}."
    yield "`inference-server doctor --repair` installs llama.cpp compiled for this machine; then start again."


def _reference_limit_s(shape: Shape) -> float:
    compiling_s = _GPU_S if shape.gpu_layers else 0.0
    return MIN_LIMIT_S + compiling_s + kept.model_size(shape.model) / _BYTES_PER_S


def _path(shape: Shape) -> Path:
    described = {**asdict(shape), "model": kept.model_identity(shape.model)}
    return kept.kept_path("kernels", json.dumps(described, sort_keys=True))
