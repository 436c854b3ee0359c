"""``python -m loadtest.conversations``: the gain when a conversation's next turn finds its cells again.

Conversations of several turns go to a worker with several children. The ways of using the service take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

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
def main(model: Path | None, variants: tuple[str, ...], loads: str, rounds: int, **shape: int) -> None:
    """Measure later turns' time to first token, and all tokens per second."""
    setting = Setting(model or default_model(), n_ctx=1024, slots=16, threads=2)
    ways = [Variant.parse(text) for text in variants]
    counts = [int(count) for count in loads.split(",")]
    speeds = {str(count): {way.label: list[float]() for way in ways} for count in counts}
    waits = {str(count): {way.label: list[float]() for way in ways} for count in counts}
    with Progress() as progress:
        task = progress.add_task("measuring", total=rounds * len(ways))
        for number in range(rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                with running(way.server(setting)) as service:
                    for count in counts:
                        speed, wait = _measured(service.url, count, **shape)
                        speeds[str(count)][way.label].append(speed)
                        waits[str(count)][way.label].append(wait)
                progress.advance(task)
    names = [way.label for way in ways]
    for title, rows in (("Tokens per second", speeds), ("Later turns' TTFT p50, ms", waits)):
        click.echo("\n".join(["", f"### {title}", "", *comparison("at once", names, rows)]))


def _measured(url: str, at_once: int, turns: int, n_predict: int) -> tuple[float, float]:
    """Tokens per second of ``at_once`` conversations, and median TTFT in ms of all turns but the first."""
    name, source = served_model(url), prompts()
    questions = [[next(source) for _ in range(turns)] for _ in range(at_once)]
    talks: list[list[Sample]] = [[] for _ in range(at_once)]
    threads = [
        threading.Thread(target=_talk, args=(url, name, asked, n_predict, talk))
        for asked, talk in zip(questions, talks, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    samples = [sample for talk in talks for sample in talk]
    wall_s = max(s.ended for s in samples) - min(s.started for s in samples)
    later = [sample.ttft_s * 1e3 for talk in talks for _, sample in pairwise(talk)]
    return sum(s.num_tokens for s in samples) / wall_s, percentile(later, 0.5)


def _talk(url: str, name: str, questions: Sequence[str], n_predict: int, said: list[Sample]) -> None:
    messages = [{"role": "system", "content": "You are a helpful assistant that answers in plain words."}]
    for question in questions:
        messages.append({"role": "user", "content": question})
        body = chat_body(name, "", None, n_predict, temperature=0, ignore_eos=True) | {"messages": messages}
        sample = measure(url, body)
        said.append(sample)
        messages.append({"role": "assistant", "content": sample.text})


if __name__ == "__main__":
    main()
