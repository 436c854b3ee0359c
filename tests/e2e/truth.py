"""An engine whose every answer is compared with logits that are computed on an empty context."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.contract.messages import Sampling
from tasks.engine.costs.table import CostTable
from tasks.engine.costs.threads import CorePool
from tasks.engine.llama.context import Context, Row
from tasks.engine.llama.model import Model
from tasks.engine.loop import Engine, EngineOptions
from tasks.engine.sequence import Job
from tasks.telemetry.work_counter import WorkCounter
from tests.e2e.outputs import Outputs

#: Batches of other sizes add in another order; a token whose logit is so close to the largest is right, too.
NEAR = 0.02


def make_context(
    model: Model, slots: int, *, n_ctx: int = 512, n_batch: int = 64, threads: int = 1
) -> Context:
    """A context; the defaults suit a tiny model."""
    return Context(model, slots=slots, n_ctx=n_ctx, n_batch=n_batch, threads=threads)


def compute(
    context: Context, slot: int, tokens: Sequence[int], start: int = 0, *, since: int = 0
) -> NDArray[np.float32]:
    """Compute ``tokens`` from position ``start`` on; the logits after each but the first ``since``."""
    found = []
    for first in range(0, len(tokens), context.n_batch):
        part = range(first, min(first + context.n_batch, len(tokens)))
        context.decode([Row(tokens[i], start + i, slot, i >= since) for i in part])
        if num_outputs := sum(i >= since for i in part):
            found.append(context.logits(num_outputs).copy())
    return np.concatenate(found)


def fresh(model: Model, tokens: Sequence[int], *, since: int = 0, **shape: int) -> NDArray[np.float32]:
    """The logits after each token but the first ``since``, computed on a context of its own."""
    context = make_context(model, 1, **shape)
    try:
        return compute(context, 0, tokens, since=since)
    finally:
        context.close()


class Answers:
    """Asks an engine for greedy answers, and compares each token with fresh logits."""

    def __init__(
        self, model: Model, slots: int, table: CostTable | None = None, near: float = NEAR, **shape: int
    ) -> None:
        self._model, self._near, self._shape = model, near, shape
        self.outputs, self.work = Outputs(), WorkCounter()
        options = EngineOptions(measure=None if table is None else lambda _: table)
        threads = CorePool(1, shape.get("threads", 1)).member(0)
        self.engine = Engine(
            lambda: make_context(model, slots, **shape), self.outputs, threads, self.work, options
        )
        self.engine.start()
        self._prompts: dict[str, list[int]] = {}

    def ask(self, key: str, prompt: Sequence[int], max_tokens: int) -> None:
        """Submit a prompt."""
        self._prompts[key] = list(prompt)
        job = Job(key, tuple(prompt), max_tokens, Sampling(temperature=0), ignore_eos=True)
        self.engine.submit(job)

    def check(self, count: int) -> None:
        """Wait for the next ``count`` answers; each of their tokens must be the likeliest."""
        for key in self.outputs.wait(count):
            assert self.outputs.endings[key].error is None
            assert self._behind(key) <= self._near, key

    def reused(self, key: str) -> int:
        """How many tokens of a prompt were not computed."""
        return self.outputs.endings[key].cache_n

    def _behind(self, key: str) -> float:
        """How far the logit of any token of an answer is behind the largest."""
        prompt, answer = self._prompts[key], self.outputs.tokens[key]
        logits = fresh(self._model, [*prompt, *answer[:-1]], since=len(prompt) - 1, **self._shape)
        logits[:, self._model.ends] = -np.inf  # as ignore_eos says
        return float((logits.max(axis=1) - logits[np.arange(len(answer)), list(answer)]).max())
