"""Computes a context's first batch; a child that it kills never reports that it is ready."""

from __future__ import annotations

from tasks.engine.llama.context import Context, Row

#: Tokens of the prompt: enough for llama.cpp to multiply matrices, as for every prompt, not only vectors.
PROMPT_TOKENS = 4


def compute_first_batch(context: Context, threads: int) -> None:
    """Compute a short prompt and one more token with ``threads`` threads, and leave the context empty.

    Raises:
        DecodeError: llama.cpp refused a batch.
        CacheFullError: there are too few cells even for a handful of tokens.
    """
    context.use_threads(threads)
    size = min(PROMPT_TOKENS, context.n_ctx - 1, context.n_batch)
    context.decode([Row(1, pos, 0, pos == size - 1) for pos in range(size)])
    context.greedy(1)
    context.decode([Row(1, size, 0, True)])
    context.greedy(1)
    context.trim(0, 0)
