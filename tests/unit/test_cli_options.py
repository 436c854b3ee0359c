"""Options and variables: one precedence, errors that name the option, a help that starts at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.cli import main
from service.cli.common.options import SettingsCommand, read_settings, settings_options
from service.settings import ApiSettings
from tasks.settings import WorkerSettings

pytestmark = pytest.mark.unit


@click.command(cls=SettingsCommand)
@settings_options(ApiSettings)
def show() -> None:
    """Print the settings in force."""
    settings = read_settings(ApiSettings)
    click.echo(f"{settings.port} {settings.queue_limit} {settings.redis_url}")


@click.command(cls=SettingsCommand)
@settings_options(WorkerSettings)
def show_worker() -> None:
    """Print a worker's settings."""
    settings = read_settings(WorkerSettings)
    click.echo(f"{settings.threads} {settings.oversubscribe}")


def call(*arguments: str, command: click.Command = show, **env: str) -> Result:
    cleared = dict.fromkeys(("INFERENCE_PORT", "INFERENCE_QUEUE_LIMIT", "INFERENCE_REDIS_URL", "REDIS_URL"))
    return CliRunner(env={**cleared, **env}).invoke(command, arguments)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command writes its options to the environment; the end of the test removes them."""
    for name in ("PORT", "QUEUE_LIMIT", "REDIS_URL", "THREADS", "OVERSUBSCRIBE", "WORKERS"):
        monkeypatch.setenv(f"INFERENCE_{name}", "")
        monkeypatch.delenv(f"INFERENCE_{name}")
    monkeypatch.setenv("REDIS_URL", "")
    monkeypatch.delenv("REDIS_URL")


def test_an_option_wins_over_the_variable_and_that_over_the_default():
    assert call().output == "8000 64 redis://127.0.0.1:6379/0\n"
    assert call(INFERENCE_PORT="9000").output.startswith("9000 64")
    assert call("--port", "9001", INFERENCE_PORT="9000").output.startswith("9001 64")


def test_redis_url_has_its_usual_name_too():
    assert "redis://there/1" in call(REDIS_URL="redis://there/1").output
    assert "redis://here/2" in call("--redis-url", "redis://here/2", REDIS_URL="redis://there/1").output


def test_a_flag():
    plain = call(command=show_worker, INFERENCE_THREADS="1", INFERENCE_WORKERS="1")
    assert plain.output == "1 False\n"
    given = call("--threads", "9999", "--oversubscribe", command=show_worker)
    assert given.output == "9999 True\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "many"], "--port: input should be a valid integer"),
        (["--port", "0"], "--port: input should be greater than or equal to 1, not '0'"),
        (["--queue-limit", "-3"], "--queue-limit: input should be greater than or equal to 1, not '-3'"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_option(arguments: list[str], told: str):
    result = call(*arguments)
    assert result.exit_code == 1
    assert told in result.output
    assert len(result.output.splitlines()) == 1


def test_too_many_threads_are_refused_with_the_largest_that_fits():
    result = call("--workers", "9", "--threads", "9999", command=show_worker)
    assert result.exit_code == 1
    assert "the largest that fits is --workers 1 --threads" in result.output


def test_help_names_variable_and_default():
    output = " ".join(call("--help").output.split())
    assert "--queue-limit INTEGER" in output
    assert "[env var: INFERENCE_QUEUE_LIMIT; default: 64]" in output
    assert "INFERENCE_REDIS_URL, REDIS_URL" in output


def test_a_setting_left_out_is_no_option():
    class Toy(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="INFERENCE_")
        state_dir: Path = Field(Path("/x"), description="Where.")

    @click.command()
    @settings_options(Toy, without=("state_dir",))
    def none() -> None:
        """Have no options."""

    assert [parameter.name for parameter in none.params] == []


@pytest.mark.parametrize(
    "command", ["serve", "api", "worker", "generate", "bench", "tune", "doctor", "model"]
)
def test_every_command_has_help(command: str):
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: main {command}")


def test_help_imports_nothing_heavy():
    """This checks imports instead of time: these modules are the slow ones."""
    heavy = ["llama_cpp", "celery", "redis", "flask", "gevent", "rich", "pydantic", "numpy"]
    assert loaded_by("import service.cli as c; c.main.get_help(c.click.Context(c.main))", heavy) == []


def test_serving_never_loads_native_code_into_the_command():
    assert loaded_by("import service.cli.serve, service.cli.bench, service.cli.generate", ["llama_cpp"]) == []


def loaded_by(code: str, names: list[str]) -> list[str]:
    script = f"{code}\nimport sys\nprint(*[name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()
