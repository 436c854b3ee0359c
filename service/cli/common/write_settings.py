"""The settings file as the commands use it: check its keys, find the source of a bad value, write values."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from tasks.settings_file import SettingsFileError, read_file, settings_file


def require_known_keys() -> None:
    """End the command with a line that names the file and the key, if a key is no setting."""
    known = _all_settings()
    for name in _contents():
        if name not in known:
            raise click.ClickException(
                f"{settings_file()}: {name!r} is not a setting{_meant(name, known)}; `inference-server serve "
                f"--help` lists them all, with hyphens for underscores."
            )


def from_file(names: Iterable[str], variables: Mapping[str, Iterable[str]]) -> list[str]:
    """The ``names`` whose value comes from the file, because none of their ``variables`` is set."""
    there = _contents()
    return [n for n in names if n in there and not any(v in os.environ for v in variables[n])]


def writable(path: Path) -> Path:
    """Return ``path`` if it can be written and any file there is TOML; else end the command with a line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            read_file(path)
        with path.open("a"):
            return path
    except SettingsFileError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"Can't write {path}: {error.strerror}.") from error


def write_settings(path: Path, values: Mapping[str, str | int], origin: str) -> None:
    """Set ``values`` in the file and leave the rest as it is; ``origin`` is a comment beside each value.

    Raises ``click.ClickException``, which tells the values, if the file can't be written; it stays as it was.
    """
    import tomlkit

    document = tomlkit.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
    for name, value in values.items():
        document[name] = tomlkit.item(value).comment(origin)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(tomlkit.dumps(document), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        told = ", ".join(f"{name} = {value!r}" for name, value in values.items())
        raise click.ClickException(f"Can't write {path}: {error.strerror}. It would say: {told}") from error


def _contents() -> Mapping[str, Any]:
    path = settings_file()
    try:
        return {} if path is None else read_file(path)
    except SettingsFileError as error:
        raise click.ClickException(str(error)) from error


def _all_settings() -> set[str]:
    from service.settings import ApiSettings
    from service.supervisor.settings import LocalSettings
    from tasks.settings import WorkerSettings

    return {name for cls in (ApiSettings, WorkerSettings, LocalSettings) for name in cls.model_fields}


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.replace("-", "_").lower(), known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
