"""Samplers, which choose a token from the logits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from tasks.contract.messages import Sampling
from tasks.engine.llama.context import Context
from tasks.engine.llama.library import llama_cpp as ll
from tasks.engine.llama.model import Model

#: How many recent tokens the repetition penalties look at (llama.cpp's ``penalty_last_n``).
PENALTY_LAST_N = 64


class Sampler:
    """A chain of llama.cpp's samplers for one request, in llama-server's order.

    Greedy requests without penalties need no chain; for them :attr:`is_plain_greedy` is true.
    """

    def __init__(self, model: Model, sampling: Sampling) -> None:
        self.is_plain_greedy = sampling.temperature <= 0 and not _has_penalties(sampling)
        self._chain = None if self.is_plain_greedy else _chain(model, sampling)

    def accept(self, tokens: Iterable[int]) -> None:
        """Tell the penalties about tokens that were generated elsewhere."""
        if self._chain is not None:
            for token in tokens:
                ll.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context, row: int) -> int:
        """Choose a token from the logits of batch row ``row``."""
        return int(ll.llama_sampler_sample(self._chain, context.handle, row))

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            ll.llama_sampler_free(self._chain)
            self._chain = None


def _has_penalties(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repeat_penalty != 1.0)


def _chain(model: Model, sampling: Sampling) -> Any:
    chain = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
    for stage in _stages(model, sampling):
        ll.llama_sampler_chain_add(chain, stage)
    return chain


def _stages(model: Model, sampling: Sampling) -> Iterable[Any]:
    if _has_penalties(sampling):
        yield ll.llama_sampler_init_penalties(
            model.n_vocab,
            PENALTY_LAST_N,
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
    if sampling.temperature <= 0:
        yield ll.llama_sampler_init_greedy()
        return
    yield ll.llama_sampler_init_top_k(sampling.top_k)
    yield ll.llama_sampler_init_top_p(sampling.top_p, 1)
    yield ll.llama_sampler_init_min_p(sampling.min_p, 1)
    yield ll.llama_sampler_init_temp(sampling.temperature)
    seed = random.getrandbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
    yield ll.llama_sampler_init_dist(seed)
