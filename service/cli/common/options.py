"""Command-line options made from the settings: each field of a settings class is an option and a variable.

This module keeps one order of precedence. An option on the command line overwrites its variable in this
process's environment. Then this process and every child read each setting from the environment or, if its
variable is not set, from the settings file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings

S = TypeVar("S", bound="BaseSettings")
Function = Callable[..., Any]

#: Settings class → its heading; ``--help`` shows the headings in this order.
_SECTIONS = {
    "BrokerSettings": "Model and queue",
    "WorkerSettings": "Worker",
    "ApiSettings": "API",
    "LocalSettings": "This machine",
}
#: Setting → the variables that other programs use for it; they count here, too.
_USUAL = {"redis_url": ("REDIS_URL",), "otlp_endpoint": ("OTEL_EXPORTER_OTLP_ENDPOINT",)}
#: Settings whose values may hold a secret, and are not shown in errors.
_SECRET = ("redis_url", "api_keys")
_METAVARS = {"int": "INTEGER", "float": "NUMBER", "Path": "PATH"}


class SettingOption(click.Option):
    """An option for a field of a settings class; ``section`` is its heading in ``--help``."""

    section = ""

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Show the setting's default as it is; click would put parentheses around a text."""
        extra = super().get_help_extra(ctx)
        if "default" in extra:
            extra["default"] = extra["default"].strip("()")
        return extra


class SettingsCommand(click.Command):
    """A command whose ``--help`` lists settings under the headings of their sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, then each section."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("", *_SECTIONS.values())}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections[getattr(parameter, "section", "")].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title or "Options"):
                    formatter.write_dl(records)


def settings_options(
    *classes: type[BaseSettings], without: Iterable[str] = ()
) -> Callable[[Function], Function]:
    """Declare the fields of ``classes`` as options; the command itself never sees their values."""
    left_out = set(without)
    names = {name: cls for cls in reversed(classes) for name in cls.model_fields if name not in left_out}

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(**values: Any) -> Any:
            if names:
                _hand_on_file(values.pop("settings"))
            for name in names:
                _hand_on(name, values.pop(name))
            return function(**values)

        for name in reversed(names):  # click lists the decorator applied last first
            _option(name, names[name])(wrapper)
        return _file_option(wrapper) if names else wrapper

    return decorate


def read_settings(cls: type[S]) -> S:
    """Read this process's settings; a bad one ends the command with a line that names the option."""
    from pydantic import ValidationError

    from service.cli.common.write_settings import require_known_keys

    require_known_keys()
    try:
        return cls()
    except ValidationError as error:
        raise click.ClickException(_one_line(error)) from None


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"INFERENCE_{name.upper()}"


def _option(name: str, cls: type[BaseSettings]) -> Callable[[Function], Function]:
    field = cls.model_fields[name]
    spelled = "--" + name.replace("_", "-")
    is_flag = field.annotation is bool
    if is_flag and field.default:
        spelled += spelled.replace("--", "/--no-", 1)
    option = click.option(
        spelled,
        cls=SettingOption,
        envvar=_variables(name),
        show_envvar=True,
        default=None,
        help=field.description,
        show_default=_shown_default(field),
        **({"is_flag": True} if is_flag else {"metavar": _metavar(field)}),
    )

    def decorate(function: Function) -> Function:
        option(function)
        cast("Any", function).__click_params__[-1].section = _section(cls, name)
        return function

    return decorate


def _hand_on(name: str, value: object) -> None:
    if value is None:
        return
    os.environ[variable(name)] = str(value)
    for usual in _USUAL.get(name, ()):
        os.environ[usual] = str(value)


def _file_option(function: Function) -> Function:
    return click.option(
        "--settings",
        envvar="INFERENCE_SETTINGS",
        show_envvar=True,
        metavar="FILE",
        help="TOML file of settings, for what neither an option nor a variable says; default: "
        "inference-server/settings.toml in XDG's configuration home, where there is one.",
    )(function)


def _hand_on_file(path: str | None) -> None:
    """Pass the path on as absolute, because the parts run in another folder; an empty path means no file."""
    if path is not None:
        os.environ["INFERENCE_SETTINGS"] = str(Path(path).expanduser().absolute()) if path else ""


def _section(cls: type[BaseSettings], name: str) -> str:
    """The heading of the class that declares the field first."""
    owner = next(base for base in reversed(cls.__mro__) if name in getattr(base, "model_fields", {}))
    return _SECTIONS[owner.__name__]


def _shown_default(field: FieldInfo) -> str | bool:
    has_plain = field.default_factory is None and field.default is not None and field.annotation is not bool
    return str(field.default) if has_plain else False


def _metavar(field: FieldInfo) -> str:
    annotation = str(getattr(field.annotation, "__name__", field.annotation))
    return next((shown for name, shown in _METAVARS.items() if name in annotation), "TEXT")


def _one_line(error: ValidationError) -> str:
    from tasks.settings_file import settings_file

    first = error.errors(include_url=False)[0]
    told = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        blamed = _of_file(name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", told))
        return told + (f"; {settings_file()} sets {' and '.join(blamed)}" if blamed else "")
    name = str(first["loc"][0]).lower().removeprefix("inference_")
    where = f"{settings_file()}: {name}" if _of_file([name]) else f"--{name.replace('_', '-')}"
    given = "" if name in _SECRET else f", not {first['input']!r}"
    return f"{where}: {told[0].lower()}{told[1:]}{given}"


def _of_file(names: Iterable[str]) -> list[str]:
    from service.cli.common.write_settings import from_file

    once = list(dict.fromkeys(names))
    return from_file(once, {name: _variables(name) for name in once})


def _variables(name: str) -> list[str]:
    return [variable(name), *_USUAL.get(name, ())]
