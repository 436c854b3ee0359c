"""Reads JSON that another process wrote, perhaps one of another release. Standard library only.

A dataclass says what is read. Fields that it doesn't have are dropped, missing fields take its defaults, and
required fields and all types are checked. :mod:`tasks.contract.versions` says what may change.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from types import NoneType
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from tasks.contract import versions

T = TypeVar("T")
#: Reads a decoded value; the text says where the value is, for errors.
_Reader: TypeAlias = Callable[[Any, str], Any]

logger = logging.getLogger(__name__)


class UnreadableError(ValueError):
    """Another process's JSON lacks a required field or has a wrong type; the text says where."""


def read(cls: type[T], raw: Any) -> T:
    """Build an object of the dataclass ``cls``, and everything in it, from decoded JSON.

    Supports ``str``, ``int``, ``float``, ``bool``, enumerations, dataclasses, ``tuple[X, ...]``,
    ``dict[str, X]`` and ``X | None``. Raises :class:`UnreadableError`.
    """
    hint: Any = cls
    found: T = _reader(hint)(raw, cls.__name__)
    return found


def read_or_warn(cls: type[T], text: str | bytes, what: str, known: int) -> T | None:
    """Like :func:`read`, but from JSON text; if it can't be read, ``None``, and one warning says so.

    Args:
        cls: what to read.
        text: the JSON of an object.
        what: a name for this kind of object, for the warning.
        known: the newest format version that can be read.
    """
    try:
        raw = json.loads(text)
        versions.check(f"{what} {_name(raw)}", raw if isinstance(raw, dict) else {}, known)
        return read(cls, raw)
    except (ValueError, versions.UnsupportedVersionError) as error:
        warn_once(f"Leaving out a {what}: {error}")
        return None


@lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one lately; the cache remembers."""
    logger.warning("%s", text)


def _name(raw: Any) -> str:
    return str(raw.get("id") or raw.get("name") or "") if isinstance(raw, dict) else ""


@cache
def _reader(hint: Any) -> _Reader:
    """The function that reads values of a type annotation."""
    origin, args = get_origin(hint), get_args(hint)
    if NoneType in args:
        [other] = set(args) - {NoneType}
        return partial(_optional, _reader(other))
    if origin is tuple:
        return partial(_series, _reader(args[0]))
    if origin is dict:
        return partial(_mapping, _reader(args[1]))
    if is_dataclass(hint):
        return partial(_object, hint)
    return partial(_member if issubclass(hint, Enum) else _plain, hint)


@cache
def _parts(cls: Any) -> tuple[tuple[Field[Any], _Reader], ...]:
    hints = get_type_hints(cls)
    return tuple((field, _reader(hints[field.name])) for field in fields(cls))


def _object(cls: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise _mismatch(where, "an object", raw)
    found = {}
    for field, reader in _parts(cls):
        if field.name in raw:
            found[field.name] = reader(raw[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UnreadableError(f"{where}.{field.name} is missing")
    return cls(**found)


def _optional(reader: _Reader, raw: Any, where: str) -> Any:
    return None if raw is None else reader(raw, where)


def _series(reader: _Reader, raw: Any, where: str) -> Any:
    if raw == {}:  # Lua's cjson writes an empty array like this
        return ()
    if not isinstance(raw, list):
        raise _mismatch(where, "an array", raw)
    return tuple(reader(each, f"{where}[{i}]") for i, each in enumerate(raw))


def _mapping(reader: _Reader, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise _mismatch(where, "an object", raw)
    return {name: reader(each, f"{where}.{name}") for name, each in raw.items()}


def _member(kind: Any, raw: Any, where: str) -> Any:
    try:
        return kind(raw)
    except ValueError:
        raise _mismatch(where, f"a {kind.__name__}", raw) from None


def _plain(kind: Any, raw: Any, where: str) -> Any:
    is_whole_float = kind is float and type(raw) is int  # JSON doesn't tell 1 from 1.0
    if type(raw) is not kind and not is_whole_float:
        raise _mismatch(where, f"of type {kind.__name__}", raw)
    return raw


def _mismatch(where: str, expected: str, raw: Any) -> UnreadableError:
    return UnreadableError(f"{where} is not {expected}, but {raw!r:.80}")
