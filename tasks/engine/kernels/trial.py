"""``python -m tasks.engine.kernels.trial PLAN``: computes a kernel set's first batches as a child would.

It is a separate program, since faulty kernels may kill their process or hang. It loads the model, forks if
the worker has children, and computes in the child: one row, a prompt, a row of each slot. Before each stage
it writes a line of JSON to standard output (``{"stage": ...}``); the last line is ``{"result": ...}``. The
reference first writes ``{"variants": [...]}``, the kernels that run on this processor.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.engine.errors import KernelsError, ModelError
from tasks.engine.kernels.judge import fault
from tasks.engine.llama.kernel_sets import KernelSet, reference

#: Most prompt tokens to compute: enough for kernels that need several tiles of rows.
PROMPT_TOKENS = 64
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial; it is passed as JSON.

    Attributes:
        model: the GGUF file.
        gpu_layers: layers on the GPU; if any, the child loads the model: a GPU can't be used before a fork.
        slots, n_ctx, n_batch: the shape of the context.
        threads: number of threads if ``kernels`` is ``None``.
        forks: whether a parent loads the model and its child computes.
        kernels: the kernel set to try; ``None`` for the plainest one, in a process that doesn't fork.
        expected: the file of the plainest kernels' logits; their trial writes it, the others read it.
    """

    model: str
    gpu_layers: int
    slots: int
    n_ctx: int
    n_batch: int
    threads: int
    forks: bool
    kernels: dict[str, Any] | None
    expected: str


def main() -> int:
    """Run the trial that the first argument describes."""
    _die_with_parent()
    plan = Plan(**json.loads(sys.argv[1]))
    try:
        _compute_reference(plan) if plan.kernels is None else _try(plan, KernelSet(**plan.kernels))
    except KernelsError as error:  # other kernel sets may work
        _say(result={"fault": str(error)})
    except ModelError as error:
        _say(error=str(error))
        return 1
    return 0


def _compute_reference(plan: Plan) -> None:
    from tasks.engine.llama.library import variants

    found = variants()
    _say(variants=found)  # before computing, since the plainest kernels may kill this process
    model = _load(plan, kernels := reference(found, plan.threads))
    started = time.perf_counter()
    logits = _compute(plan, model, kernels)
    took_s = time.perf_counter() - started
    np.save(plan.expected, logits)
    _say(result={"took_s": took_s})


def _try(plan: Plan, kernels: KernelSet) -> None:
    # Like a worker that has children: the parent loads the model and never computes.
    if not plan.forks:
        _try_here(plan, kernels, None)
        return
    model = None if plan.gpu_layers else _load(plan, kernels)
    child = os.fork()
    if child == 0:
        _try_in_child(plan, kernels, model)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        _say(died=status)


def _try_in_child(plan: Plan, kernels: KernelSet, model: Any) -> None:
    """Compute and judge, then end this process."""
    _die_with_parent()
    status = 1
    try:
        _try_here(plan, kernels, model)
        status = 0
    finally:
        os._exit(status)


def _try_here(plan: Plan, kernels: KernelSet, model: Any) -> None:
    try:
        logits = _compute(plan, model or _load(plan, kernels), kernels)
        _say(result={"fault": fault(logits, _expected(plan))})
    except KernelsError as error:
        _say(result={"fault": str(error)})
    except ModelError as error:
        _say(error=str(error))


def _die_with_parent() -> None:
    """Have Linux kill this process when its parent dies; kernels that hang would outlive a killed worker."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _load(plan: Plan, kernels: KernelSet) -> Any:
    from tasks.engine.llama.model import Model

    _say(stage="loading the model")
    return Model(Path(plan.model), plan.gpu_layers, kernels)


def _compute(plan: Plan, model: Any, kernels: KernelSet) -> NDArray[np.float32]:
    """Logits ``(rows, n_vocab)`` of all stages."""
    from tasks.engine.llama.context import Context

    _say(stage="making the context")
    n_ctx = min(plan.n_ctx, model.n_ctx_train or plan.n_ctx)
    shape = {"slots": plan.slots, "n_ctx": n_ctx, "n_batch": plan.n_batch}
    context = Context(model, threads=kernels.threads, **shape)
    found = []
    for stage, rows in _batches(model, context):
        _say(stage=stage)
        context.decode(rows)
        found.append(context.logits(sum(row.is_output for row in rows)).copy())
    return np.concatenate(found)


def _batches(model: Any, context: Any) -> Iterator[tuple[str, list[Any]]]:
    """The batches that a child computes first: one row, a chunk of a prompt, a row of every slot."""
    from tasks.engine.llama.context import Row

    size = max(1, min(PROMPT_TOKENS, context.n_batch, context.n_ctx - 2))
    tokens = [_token(model, number) for number in range(max(size, context.slots))]
    yield "computing one row", [Row(tokens[0], 0, 0, True)]
    prompt = [Row(tokens[pos], pos, 0, pos == size - 1) for pos in range(1, size)]
    if prompt:
        yield f"computing a prompt of {size} tokens", prompt
    rows = [Row(tokens[slot], 0 if slot else size, slot, True) for slot in range(context.slots)]
    yield f"computing {len(rows)} rows", rows


def _token(model: Any, number: int) -> int:
    """A token for each position, the same for all kernels."""
    return int(1 + (number * 7919) % max(1, model.n_vocab - 1))


def _expected(plan: Plan) -> NDArray[np.float32] | None:
    """The plainest kernels' logits; ``None`` if they failed or computed NaN."""
    path = Path(plan.expected)
    if not path.exists():
        return None
    found: NDArray[np.float32] = np.load(path)
    return found if np.isfinite(found).all() else None


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
