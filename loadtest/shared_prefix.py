"""``python -m loadtest.shared_prefix``: what a long system prompt costs once it has been computed.

Each round has a system prompt that no server has seen. The first request computes it (cold); the next
requests, one at a time, reuse it (warm). Then several requests at once bring another new system prompt; the
server should compute it only once. Then as many requests at once bring the same prompt, which is now known.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import click
from rich.progress import track

from loadtest.compare.servers import Running, Setting, ours, running
from loadtest.speculation import TEXTS
from service.client.api_client import Sample, chat_body, measure, served_model
from service.client.load_run import prompts
from service.weights.model_files import default_model
from tasks.contract.percentile import percentile

#: A word of the texts has 1.1 tokens of this model on average; a template adds about 30 tokens.
TOKENS_PER_WORD, TEMPLATE_TOKENS = 1.12, 30
WARM_REQUESTS = 4


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--rounds", default=10, show_default=True, help="Rounds, each with new system prompts.")
@click.option("--tokens", default=500, show_default=True, help="Length of a system prompt, about.")
@click.option("--at-once", default=16, show_default=True, help="Requests at the same moment.")
@click.option("--n-predict", default=8, show_default=True, help="Tokens of an answer.")
def main(model: Path | None, rounds: int, tokens: int, at_once: int, n_predict: int) -> None:
    """Measure the time to first token with a system prompt that is new, and with one that is known."""
    setting = Setting(model or default_model(), n_ctx=1024, slots=16, threads=2)
    with running(ours(setting, None)) as service:
        asker = _Asker(service, served_model(service.url), n_predict)
        _round(asker, tokens, at_once)  # warms up
        found = [_round(asker, tokens, at_once) for _ in track(range(rounds), "measuring", transient=True)]
    for line in _report(found, at_once):
        click.echo(line)


@dataclass(frozen=True, slots=True)
class Round:
    """The answers of one round."""

    cold: Sample
    warm: tuple[Sample, ...]
    together_cold: tuple[Sample, ...]
    together_warm: tuple[Sample, ...]


class _Asker:
    """Asks new questions after a system prompt."""

    def __init__(self, service: Running, name: str, n_predict: int) -> None:
        self._url, self._name, self._n_predict = service.url, name, n_predict
        self._prompts = prompts()

    def one(self, system: str) -> Sample:
        """Ask one question."""
        return measure(self._url, self._body(system))

    def many(self, system: str, count: int) -> tuple[Sample, ...]:
        """Ask several questions at the same moment."""
        bodies = [self._body(system) for _ in range(count)]
        with ThreadPoolExecutor(count) as pool:
            return tuple(pool.map(lambda body: measure(self._url, body), bodies))

    def _body(self, system: str) -> dict[str, object]:
        options = {"temperature": 0, "ignore_eos": True}
        return chat_body(self._name, next(self._prompts), system, self._n_predict, **options)


def _round(asker: _Asker, tokens: int, at_once: int) -> Round:
    alone, together = _system_prompt(tokens), _system_prompt(tokens)
    return Round(
        cold=asker.one(alone),
        warm=tuple(asker.one(alone) for _ in range(WARM_REQUESTS)),
        together_cold=asker.many(together, at_once),
        together_warm=asker.many(together, at_once),
    )


def _system_prompt(tokens: int) -> str:
    """A prompt of about ``tokens`` tokens that differs from all others from its first word on."""
    words = islice(cycle(" ".join(TEXTS).split()), int((tokens - TEMPLATE_TOKENS) / TOKENS_PER_WORD))
    return f"{secrets.token_hex(4)}: {' '.join(words)}"


def _report(found: Sequence[Round], at_once: int) -> Iterator[str]:
    cold = [round_.cold.ttft_s for round_ in found]
    warm = [statistics.median(sample.ttft_s for sample in round_.warm) for round_ in found]
    ratios = [after / before for before, after in zip(cold, warm, strict=True)]
    first, later = found[0].cold, found[0].warm[0]
    yield f"prompt: {_timing(first, 'prompt_n') + _timing(first, 'cache_n')} tokens, {len(found)} rounds"
    yield f"of them computed: cold {_timing(first, 'prompt_n')}, warm {_timing(later, 'prompt_n')}"
    yield f"time to first token, cold: p50 {percentile(cold, 0.5) * 1e3:.1f} ms"
    yield f"time to first token, warm: p50 {percentile(warm, 0.5) * 1e3:.1f} ms"
    yield f"warm / cold: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    for told, samples in (
        ("a new prompt", [sample for round_ in found for sample in round_.together_cold]),
        ("a known prompt", [sample for round_ in found for sample in round_.together_warm]),
    ):
        ttft = [sample.ttft_s * 1e3 for sample in samples]
        computed = sum(_timing(sample, "prompt_n") for sample in samples) / len(found)
        yield (
            f"{at_once} at once, {told}: TTFT p50 {percentile(ttft, 0.5):.0f} ms, "
            f"p95 {percentile(ttft, 0.95):.0f} ms; {computed:.0f} prompt tokens computed in all"
        )


def _timing(sample: Sample, name: str) -> int:
    return int((sample.timings or {})[name])


if __name__ == "__main__":
    main()
