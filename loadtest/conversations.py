"""``python -m loadtest.conversations``: the gain when a conversation's next turn finds its cells again.

Conversations of several turns go to a worker with several children. The ways of using the service take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from loadtest.compare.servers import Setting, Variant, running
from loadtest.tables import comparison
from service.client.api_client import Sample, chat_body, measure, served_model
from service.client.load_run import prompts
from service.weights.model_files import default_model
from tasks.contract.percentile import percentile


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option(
    "--ours",
    "variants",
    multiple=True,
    required=True,
    help="LABEL=ARGUMENTS; the first is compared with the others.",
)
@click.option("--loads", default="2,4,8", show_default=True, help="Conversations at once, comma-separated.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; the ways take turns in each.")
@click.option("--turns", default=6, show_default=True, help="Turns of a conversation.")
@click.option("--n-predict", default=48, show_default=True, help="Tokens of an answer.")
@click.option("--interleaved", is_flag=True, help="One request at a time: each conversation's turn in turn.")
def main(model: Path | None, variants: tuple[str, ...], loads: str, rounds: int, **shape: Any) -> None:
    """Measure later turns' time to first token, and all tokens per second."""
    setting = Setting(model or default_model(), n_ctx=1024, slots=16, threads=2)
    ways = [Variant.parse(text) for text in variants]
    counts = [int(count) for count in loads.split(",")]
    found = {kind: {str(n): {way.label: list[float]() for way in ways} for n in counts} for kind in _KINDS}
    with Progress() as progress:
        task = progress.add_task("measuring", total=rounds * len(ways))
        for number in range(rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                with running(way.server(setting)) as service:
                    for count in counts:
                        for kind, figure in zip(_KINDS, _measured(service.url, count, **shape), strict=True):
                            found[kind][str(count)][way.label].append(figure)
                progress.advance(task)
    names = [way.label for way in ways]
    for title, rows in found.items():
        click.echo("\n".join(["", f"### {title}", "", *comparison("at once", names, rows)]))


#: What every conversation begins with.
SYSTEM = "You are a helpful assistant that answers in plain words."
_KINDS = ("Tokens per second", "Later turns' TTFT p50, ms", "Later turns' prompt tokens reused, %")


def _measured(
    url: str, count: int, turns: int, n_predict: int, interleaved: bool
) -> tuple[float, float, float]:
    """The figures of ``count`` conversations, as in :data:`_KINDS`; all take a turn, then the next."""
    name, source = served_model(url), prompts()
    talks = [_Talk(url, name, n_predict) for _ in range(count)]
    asked = [[next(source) for _ in talks] for _ in range(turns)]
    with ThreadPoolExecutor(1 if interleaved else count) as threads:
        for questions in asked:
            list(threads.map(_Talk.turn, talks, questions))  # the list raises what a turn raised
    samples = [sample for talk in talks for sample in talk.samples]
    wall_s = max(s.ended for s in samples) - min(s.started for s in samples)
    later = [sample for talk in talks for sample in talk.samples[1:]]
    ttft_ms = percentile([sample.ttft_s * 1e3 for sample in later], 0.5)
    return sum(s.num_tokens for s in samples) / wall_s, ttft_ms, _reused_percent(later)


def _reused_percent(samples: Sequence[Sample]) -> float:
    timings = [sample.timings or {} for sample in samples]
    reused, computed = (sum(int(each.get(name, 0)) for each in timings) for name in ("cache_n", "prompt_n"))
    return 100 * reused / (reused + computed)


class _Talk:
    """One conversation, and what was measured of its turns."""

    def __init__(self, url: str, model: str, n_predict: int) -> None:
        self._url, self._model, self._n_predict = url, model, n_predict
        self._messages = [{"role": "system", "content": SYSTEM}]
        self.samples: list[Sample] = []

    def turn(self, question: str) -> None:
        self._messages.append({"role": "user", "content": question})
        body = chat_body(self._model, "", None, self._n_predict, temperature=0, ignore_eos=True)
        sample = measure(self._url, body | {"messages": self._messages})
        self.samples.append(sample)
        self._messages.append({"role": "assistant", "content": sample.text})


if __name__ == "__main__":
    main()
