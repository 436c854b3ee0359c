"""Settings in a TOML file: one line for each, named like its option, with underscores.

Only the defaults are weaker than the file; see :mod:`tasks.settings`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_config_path
from pydantic import model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, TomlConfigSettingsSource

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

#: The environment variable that names the file; empty means no file.
SETTINGS_VARIABLE = "INFERENCE_SETTINGS"


class SettingsFileError(Exception):
    """The file can't be used; the text names it and says why."""


def default_settings_file() -> Path:
    """Path of the user's own settings file, in XDG's configuration home."""
    return user_config_path("inference-server") / "settings.toml"


def settings_file() -> Path | None:
    """The file in use: the one that ``INFERENCE_SETTINGS`` names, or else the user's own if it exists."""
    chosen = os.environ.get(SETTINGS_VARIABLE)
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    path = default_settings_file()
    return path if path.is_file() else None


def read_file(path: Path) -> Mapping[str, Any]:
    """The settings in ``path``. Raises :class:`SettingsFileError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsFileError(f"Can't read the settings file {path}: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsFileError(f"The settings file {path} is no TOML: {error}.") from error


class FileBackedSettings(BaseSettings):
    """Settings from arguments, then the environment, then the file in use."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_none(cls, values: dict[str, object]) -> dict[str, object]:
        """Drop options that were not given, which are ``None``: their defaults apply."""
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources, strongest first. Raises :class:`SettingsFileError` if the file can't be used."""
        path = settings_file()
        return (init_settings, env_settings, *(() if path is None else (_File(settings_cls, path),)))


class _File(TomlConfigSettingsSource):
    """A TOML source whose file must exist, and whose errors name the file."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path) -> None:
        read_file(path)
        super().__init__(settings_cls, path)

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        return dict(read_file(Path(str(file_path))))
