"""``python -m loadtest.speculation``: what prompt lookup gains and costs with one request at a time.

There are two workloads, each with prompt lookup on and off in turn. One summarises texts, and so repeats much
of them; the other chats.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import click
from rich.progress import Progress

from loadtest.compare.servers import Running, Setting, ours, running
from service.client.api_client import chat_body, measure, served_model
from service.client.load_run import prompts
from service.weights.model_files import default_model

#: Paragraphs to summarise.
TEXTS = Path(__file__).with_name("summarise.txt").read_text().strip().split("\n\n")


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; on and off take turns.")
@click.option("--requests", default=6, show_default=True, help="Requests of each workload in a round.")
def main(model: Path | None, rounds: int, requests: int) -> None:
    """Measure tokens per second with prompt lookup on and off."""
    setting = Setting(model or default_model(), n_ctx=2048, slots=16, threads=2)
    speeds: dict[tuple[str, bool], list[float]] = {}
    with Progress() as progress:
        task = progress.add_task("measuring", total=2 * rounds)
        for number in range(rounds):
            for is_on in (True, False) if number % 2 else (False, True):
                flags = ("--speculation",) if is_on else ("--no-speculation",)
                with running(ours(setting, None, flags)) as service:
                    for name, speed in _measured(service, requests):
                        speeds.setdefault((name, is_on), []).append(speed)
                progress.advance(task)
    for name in ("summaries", "chat"):
        on, off = speeds[name, True], speeds[name, False]
        ratios = [a / b for a, b in zip(on, off, strict=True)]
        click.echo(
            f"{name}: on {statistics.median(on):.0f} tok/s, off {statistics.median(off):.0f} tok/s, "
            f"on / off {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def _measured(service: Running, requests: int) -> Iterator[tuple[str, float]]:
    name = served_model(service.url)
    summaries = (f"{text}\n\nSummarise this text." for text in cycle(TEXTS))
    for workload, asked in (("summaries", summaries), ("chat", prompts())):
        samples = [
            measure(service.url, chat_body(name, prompt, None, 128, temperature=0))
            for prompt in islice(asked, requests)
        ]
        yield workload, statistics.median(s.num_tokens / (s.ended - s.started - s.ttft_s) for s in samples)


if __name__ == "__main__":
    main()
