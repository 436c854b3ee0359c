"""``python -m loadtest.streams``: many streams open at once on one API process.

All requests are sent at once and wait in the queue with their streams open; each is read to its end.
"""

from __future__ import annotations

import threading
import time
from itertools import islice
from pathlib import Path

import click

from loadtest.compare.servers import Setting, ours, running
from service.client.api_client import ClientError, Sample, chat_body, measure, served_model
from service.client.load_run import prompts
from service.weights.model_files import default_model
from tasks.contract.percentile import percentile


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--streams", default=500, show_default=True, help="Streams open at once.")
@click.option("--n-predict", default=32, show_default=True, help="Tokens of an answer.")
def main(model: Path | None, streams: int, n_predict: int) -> None:
    """Hold many streams open at once, and count those that complete."""
    setting = Setting(model or default_model(), n_ctx=1024, slots=16, threads=2)
    server = ours(setting, workers=None, extra=("--queue-limit", str(streams)))
    with running(server) as service:
        name = served_model(service.url)
        bodies = [
            chat_body(name, prompt, None, n_predict, temperature=0, ignore_eos=True)
            for prompt in islice(prompts(), streams)
        ]
        started = time.perf_counter()
        results = _all_at_once(service.url, bodies)
    samples = [result for result in results if isinstance(result, Sample)]
    whole = [sample for sample in samples if sample.num_tokens == n_predict]
    waits = [sample.ttft_s for sample in samples]
    wall = max(sample.ended for sample in samples) - started
    click.echo(f"{len(whole)} of {streams} streams complete with {n_predict} tokens each, in {wall:.1f} s")
    click.echo(f"time to first token: p50 {percentile(waits, 0.5):.1f} s, max {max(waits):.1f} s")


def _all_at_once(url: str, bodies: list[dict[str, object]]) -> list[Sample | ClientError]:
    results: list[Sample | ClientError] = []
    threads = [threading.Thread(target=_one, args=(url, body, results)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _one(url: str, body: dict[str, object], results: list[Sample | ClientError]) -> None:
    try:
        results.append(measure(url, body))
    except ClientError as error:
        results.append(error)


if __name__ == "__main__":
    main()
