"""The command line: each command is in its own file, which is imported only when the command is called."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import click

#: Command → its location, and its line in ``--help``, which needs no import.
_COMMANDS = {
    "serve": ("service.cli.serve:serve", "Run everything on this machine: queue, worker and API."),
    "api": ("service.cli.api:api", "Run the HTTP API alone."),
    "worker": ("service.cli.worker:worker", "Run a worker host alone."),
    "generate": ("service.cli.generate:generate", "Stream one answer in the terminal."),
    "top": ("service.cli.top:top", "Watch a service in the terminal."),
    "bench": ("service.cli.bench:bench", "Measure throughput and latency under concurrent load."),
    "tune": ("service.cli.tune:tune", "Find the best settings for this machine, and write them down."),
    "doctor": ("service.cli.doctor:doctor", "Check whether it would work here, and say what to change."),
    "model": ("service.cli.model:model", "Get a model."),
}


class _LazyGroup(click.Group):
    """Imports a command when it is called, so that ``--help`` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        return cast("click.Command", getattr(import_module(module), name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in _COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="concurrent-inference-server", prog_name="inference-server")
def main() -> None:
    """Serve GGUF models to many people at once from ordinary machines."""
