"""``python -m loadtest.overhead``: what HTTP, the queue and pub/sub add to the time to first token.

It sends one request at a time. Each answer says how long the engine alone took from admission to the first
token (``timings.prompt_ms``). The rest of the client's time to first token was added by everything else.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click

from loadtest.compare.servers import Setting, ours, running
from service.client.api_client import Sample, chat_body, measure, served_model
from service.client.load_run import SYSTEM_PROMPT, prompts
from service.weights.model_files import default_model
from tasks.contract.percentile import percentile


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="GGUF file; default: the fetched one.")
@click.option("--requests", default=60, show_default=True, help="Requests, one after another.")
@click.option("--n-predict", default=16, show_default=True, help="Tokens of an answer.")
def main(model: Path | None, requests: int, n_predict: int) -> None:
    """Measure the time that is added to the time to first token."""
    server = ours(Setting(model or default_model(), n_ctx=1024, slots=16, threads=2), workers=None)
    with running(server) as service:
        name = served_model(service.url)
        bodies = [
            chat_body(name, prompt, SYSTEM_PROMPT, n_predict, temperature=0, ignore_eos=True)
            for prompt in islice(prompts(), requests + 4)
        ]
        samples = [measure(service.url, body) for body in bodies][4:]  # the first ones warm up
    added = [_added_ms(sample) for sample in samples]
    engine = [float((sample.timings or {})["prompt_ms"]) for sample in samples]
    click.echo(f"engine alone:  p50 {percentile(engine, 0.5):.2f} ms, p95 {percentile(engine, 0.95):.2f} ms")
    click.echo(f"added:         p50 {percentile(added, 0.5):.2f} ms, p95 {percentile(added, 0.95):.2f} ms")


def _added_ms(sample: Sample) -> float:
    return sample.ttft_s * 1e3 - float((sample.timings or {})["prompt_ms"])


if __name__ == "__main__":
    main()
