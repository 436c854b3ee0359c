"""Samplers, which choose a token from the logits."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tasks.contract.messages import Sampling
from tasks.engine.llama.context import Context
from tasks.engine.llama.library import llama_cpp as ll
from tasks.engine.llama.model import Model
from tasks.engine.llama.tamed import tamed

#: How many recent tokens the penalties look at (llama.cpp's ``penalty_last_n``).
PENALTY_LAST_N = 64


class Sampler:
    """A chain of llama.cpp's samplers for one request, in llama-server's order.

    ``repeat_penalty`` looks at the prompt and the answer, as in llama-server; ``presence_penalty`` and
    ``frequency_penalty`` look at the answer only, as OpenAI's do.

    Greedy requests without penalties need no chain; for them :attr:`is_plain_greedy` is true.
    """

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        *,
        ignore_eos: bool = False,
        prompt: Sequence[int] = (),
        answer: Sequence[int] = (),
    ) -> None:
        """``answer`` are tokens that were generated before; with ``ignore_eos`` no token ends the answer."""
        sampling = tamed(sampling)
        self.is_plain_greedy = sampling.temperature <= 0 and not _has_penalties(sampling)
        self._chain = None
        if not self.is_plain_greedy:
            barred = model.ends if ignore_eos else ()
            self._chain = _chain(_stages(model, sampling, barred, [*prompt, *answer], answer))

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


def _chain(stages: Iterable[Any]) -> Any:
    chain = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
    for stage in stages:
        ll.llama_sampler_chain_add(chain, stage)
    return chain


def _stages(
    model: Model, sampling: Sampling, barred: Sequence[int], text: Sequence[int], answer: Sequence[int]
) -> Iterator[Any]:
    if barred:
        biases = (ll.llama_logit_bias * len(barred))(*((token, float("-inf")) for token in barred))
        yield ll.llama_sampler_init_logit_bias(model.n_vocab, len(barred), biases)
    if sampling.repeat_penalty != 1.0:
        yield _penalties(model, text, repeat=sampling.repeat_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        presence, frequency = sampling.presence_penalty, sampling.frequency_penalty
        yield _penalties(model, answer, presence=presence, frequency=frequency)
    if sampling.temperature <= 0:
        yield ll.llama_sampler_init_greedy()
        return
    yield ll.llama_sampler_init_top_k(sampling.top_k)
    yield ll.llama_sampler_init_top_p(sampling.top_p, 1)
    yield ll.llama_sampler_init_min_p(sampling.min_p, 1)
    yield ll.llama_sampler_init_temp(sampling.temperature)
    seed = random.getrandbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
    yield ll.llama_sampler_init_dist(seed)


def _penalties(
    model: Model, seen: Sequence[int], repeat: float = 1.0, frequency: float = 0.0, presence: float = 0.0
) -> Any:
    """A stage of penalties that has seen the last of these tokens."""
    stage = ll.llama_sampler_init_penalties(model.n_vocab, PENALTY_LAST_N, repeat, frequency, presence)
    for token in seen[-PENALTY_LAST_N:]:
        ll.llama_sampler_accept(stage, token)
    return stage
