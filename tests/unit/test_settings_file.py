"""The settings file: only defaults are weaker, and every error that the file causes names it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from unittest import mock

import click
import pytest
from click.testing import CliRunner, Result

from service.cli.common.options import SettingsCommand, read_settings, settings_options
from service.settings import ApiSettings
from tasks.settings import WorkerSettings
from tasks.settings_file import SettingsFileError, default_settings_file, settings_file

pytestmark = pytest.mark.unit

Write = Callable[[str], Path]


@click.command(cls=SettingsCommand)
@settings_options(WorkerSettings, ApiSettings)
def show() -> None:
    """Print the settings in force."""
    api, worker = read_settings(ApiSettings), read_settings(WorkerSettings)
    click.echo(f"{api.port} {worker.queue_limit} {worker.redis_url} {worker.prefix_cache}")


@pytest.fixture(autouse=True)
def environment(tmp_path: Path) -> Iterator[None]:
    """An environment without settings, restored at the end, and a configuration home for this test alone."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("INFERENCE_", "REDIS_URL"))}
    with mock.patch.dict(os.environ, {**kept, "XDG_CONFIG_HOME": str(tmp_path / "config")}, clear=True):
        yield


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return path

    return written


def call(*arguments: str, **env: str) -> Result:
    with mock.patch.dict(os.environ, env):  # a command writes its options to the environment
        return CliRunner().invoke(show, arguments)


def test_nothing_is_read_where_there_is_no_file():
    assert settings_file() is None
    assert call().output == "8000 64 redis://127.0.0.1:6379/0 True\n"


def test_a_flag_wins_over_a_variable_and_that_over_the_file_and_that_over_the_default(write: Write):
    path = str(write("port = 9000\n"))
    assert call("--settings", path).output.startswith("9000 64")
    assert call("--settings", path, INFERENCE_PORT="9001").output.startswith("9001 64")
    assert call("--settings", path, "--port", "9002", INFERENCE_PORT="9001").output.startswith("9002 64")


@pytest.mark.parametrize(
    "sources", [s for n in range(4) for s in combinations(("file", "variable", "flag"), n)]
)
def test_the_strongest_source_that_speaks_is_heard(write: Write, sources: tuple[str, ...]):
    path = str(write("queue_limit = 1" if "file" in sources else ""))
    variables = {"INFERENCE_QUEUE_LIMIT": "2"} if "variable" in sources else {}
    flags = ("--queue-limit", "3") if "flag" in sources else ()
    strongest = {"file": "1", "variable": "2", "flag": "3"}[sources[-1]] if sources else "64"
    assert call("--settings", path, *flags, **variables).output.split()[1] == strongest


def test_the_file_may_be_named_by_a_variable_or_be_ones_own(write: Write):
    assert call(INFERENCE_SETTINGS=str(write("port = 9000"))).output.startswith("9000 ")
    own = default_settings_file()
    own.parent.mkdir(parents=True)
    own.write_text("port = 9010")
    assert call().output.startswith("9010 ")
    assert call(INFERENCE_SETTINGS="").output.startswith("8000 ")


def test_redis_and_flags_in_the_file(write: Write):
    path = str(write('redis_url = "redis://there/1"\nprefix_cache = false\n'))
    assert call("--settings", path).output == "8000 64 redis://there/1 False\n"
    assert "redis://here/2" in call("--settings", path, REDIS_URL="redis://here/2").output
    assert "redis://here/3" in call("--settings", path, "--redis-url", "redis://here/3").output
    assert call("--settings", path, "--prefix-cache").output.endswith("True\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queue_limit = 0", "queue_limit: input should be greater than or equal to 1, not 0"),
        ('port = "many"', "port: input should be a valid integer"),
        ("queue_limits = 3", "'queue_limits' is not a setting (did you mean 'queue_limit'?)"),
        ("[worker]\nslots = 3", "'worker' is not a setting (did you mean 'workers'?)"),
        ("port == 3", "is no TOML"),
        ("workers = 9\nthreads = 9999", "settings.toml sets workers and threads"),
    ],
)
def test_an_error_is_one_line_that_names_file_and_key(write: Write, text: str, told: str):
    path = str(write(text))
    result = call("--settings", path)
    assert result.exit_code == 1
    assert path in result.output
    assert told in result.output
    assert len(result.output.splitlines()) == 1


def test_an_error_is_the_options_where_it_overrides_the_file(write: Write):
    result = call("--settings", str(write("queue_limit = 3")), "--queue-limit", "0")
    assert "--queue-limit: input should be greater" in result.output


def test_a_file_that_is_not_there_is_told():
    result = call("--settings", "nowhere.toml")
    assert result.exit_code == 1
    assert f"Can't read the settings file {Path('nowhere.toml').absolute()}" in result.output
    with mock.patch.dict(os.environ, INFERENCE_SETTINGS="nowhere.toml"), pytest.raises(SettingsFileError):
        WorkerSettings()
