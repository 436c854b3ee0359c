"""The command: both builds generate texts, each in a separate process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.progress import track

from loadtest.bare.build import Build, BuildError, parse_builds
from loadtest.same_texts.verdict import Texts, difference, report, shifts_of
from service.bench.encodings import all_encoded
from service.cli.model import shown_progress

#: The beginnings of the texts; each text is generated alone.
PROMPTS = (
    "The tides are caused by", "A hash table stores", "To bake a loaf of bread, first", "def fibonacci(n):",
    "The capital of France is", "Photosynthesis is the process by which", "Once upon a time in a village",
    "SELECT name FROM customers WHERE", "The three laws of thermodynamics say that", "A mutex is used to",
    "Dear hiring manager,", "In 1969, astronauts", "The difference between TCP and UDP is",
    "Here is a short poem about the sea:", "Compound interest means that", "The heart pumps blood",
    "To reverse a linked list,", "Shakespeare wrote", "The water cycle begins when", "Q: What is 12 times 8?",
)  # fmt: skip


@click.command()
@click.option("--a", required=True, help="LABEL=FOLDER[:VARIANT], or [:repack=off,kv=q8_0,fa=off].")
@click.option("--b", required=True, help="The same for the other; LABEL:VARIANT for another of the first's.")
@click.option(
    "--model", type=click.Path(path_type=Path), default=None, help="GGUF file; default: the fetched one."
)
@click.option(
    "--encoding", "encodings", multiple=True, help="Instead of --model: the default model so encoded."
)
@click.option("--prompts", default=len(PROMPTS), show_default=True, help="How many of the prompts.")
@click.option("--n-predict", default=64, show_default=True, help="Tokens of a text.")
@click.option("--threads", default=2, show_default=True, help="Compute threads.")
@click.option(
    "--tie", default=0.5, show_default=True, help="Logits at most so far apart, under both, are a near-tie."
)
def main(model: Path | None, encodings: tuple[str, ...], prompts: int, tie: float, **options: Any) -> None:
    """Compare greedy texts of two builds; exit status 1 when some differ by more than a near-tie."""
    with shown_progress() as progress:
        files = [file.path for file in all_encoded(model, encodings, progress)]
    try:
        pair = parse_builds([options.pop("a"), options.pop("b")])
        question = {"prompts": PROMPTS[:prompts], **options}
        found = [compare(pair, {**question, "model": str(path)}) for path in track(files, "generating")]
    except BuildError as error:
        raise click.ClickException(str(error)) from error
    for path, texts in zip(files, found, strict=True):
        click.echo("\n".join(report(path.name, texts, tie)))
    if not all(texts.is_same(tie) for texts in found):
        raise SystemExit(1)


def compare(builds: Sequence[Build], question: Mapping[str, Any]) -> Texts:
    """Generate with both builds. Raises :class:`BuildError` when one can't be used."""
    a, b = (build.ask("loadtest.bare.texts", question) for build in builds)
    pieces = {int(token): piece for token, piece in {**a["pieces"], **b["pieces"]}.items()}
    pairs = list(zip(question["prompts"], a["texts"], b["texts"], strict=True))
    differences = tuple(found for pair in pairs if (found := difference(*pair)) is not None)
    shifts = tuple(shift for _, one, other in pairs for shift in shifts_of(one, other))
    kernels = tuple(f"{told['kernels']['file']}, weights in {told['kernels']['buffers']}" for told in (a, b))
    labels = builds[0].label, builds[1].label
    return Texts(labels, (kernels[0], kernels[1]), pieces, len(pairs), differences, shifts)


if __name__ == "__main__":
    main()
