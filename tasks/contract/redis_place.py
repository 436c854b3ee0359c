"""Where Redis is: the one reader of the setting ``redis_url``, for every client of Redis.

The forms::

    redis://[[user]:password@]host[:port][/db][?options]
    rediss://…                                                (with TLS)
    unix://[[user]:password@]/path/of/the.sock[?db=N&options] (also redis+socket://)
    sentinel://[[user]:password@]host[:port][;sentinel://host:port …]/db[?master_name=NAME]

Special characters in a user, a password or a path are percent-encoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

Kind = Literal["redis", "rediss", "unix", "sentinel"]

_KINDS: Mapping[str, Kind] = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "redis+socket": "unix",
    "sentinel": "sentinel",
}
_PORTS: Mapping[Kind, int] = {"redis": 6379, "rediss": 6379, "sentinel": 26379}
#: Bytes of the longest path of a Unix socket on Linux (``sun_path`` without its end).
MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """An address of Redis, read and checked.

    Attributes:
        hosts: names and ports; several for Sentinel, none for a Unix socket.
        path: of the Unix socket, or empty.
        master: the name that the Sentinels watch, or empty.
        options: what the query says, named as in redis-py.
    """

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    master: str = ""
    options: Mapping[str, str | int | bool] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str) -> RedisPlace:
        """Read a URL. Raises ``ValueError``; the text has no part of the URL that may be a password."""
        kind = _kind(url)
        parts = [_split(each) for each in url.split(";")] if kind == "sentinel" else [_split(url)]
        first, last = parts[0], parts[-1]
        query = _query(last)
        options = {name: _option(kind, name, value) for name, value in query.items() if name not in _PLACE}
        return cls(
            kind=kind,
            hosts=() if kind == "unix" else tuple(_host(part, _PORTS[kind]) for part in parts),
            path=_socket_path(first) if kind == "unix" else "",
            db=_db("" if kind == "unix" else last.path, query),
            username=unquote(first.username or "") or None,
            password=unquote(first.password or "") or None,
            master=query.get("master_name", "mymaster") if kind == "sentinel" else "",
            options=options,
        )

    @property
    def shown(self) -> str:
        """The address for a person, without user and password."""
        hosts = ",".join(f"{_bracketed(host)}:{port}" for host, port in self.hosts)
        return self.path or f"{hosts}/{self.db}"

    @property
    def user_info(self) -> str:
        """User and password as a part of a URL, ending in ``@``; or empty."""
        if not (self.username or self.password):
            return ""
        password = f":{quote(self.password, safe='')}" if self.password else ""
        return f"{quote(self.username or '', safe='')}{password}@"

    @property
    def first_address(self) -> str:
        """The first host and its port as a part of a URL; ``localhost`` for a Unix socket."""
        return f"{_bracketed(self.hosts[0][0])}:{self.hosts[0][1]}" if self.hosts else "localhost"


def _kind(url: str) -> Kind:
    scheme, separator, _ = url.partition("://")
    kind = _KINDS.get(scheme.lower()) if separator else None
    if kind is None:
        raise ValueError("must begin with redis://, rediss://, unix://, redis+socket:// or sentinel://")
    return kind


def _split(url: str) -> SplitResult:
    hint = "special characters of a user and a password are written / %2F, # %23, ? %3F, @ %40, [ %5B"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"has a host or a port that can't be read; {hint}") from None
    if port == 0:
        raise ValueError("has port 0")
    if parts.fragment:
        raise ValueError(f"has a #, which no address of Redis has; {hint}")
    return parts


def _host(parts: SplitResult, port: int) -> tuple[str, int]:
    return unquote(parts.hostname or "127.0.0.1"), parts.port or port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _socket_path(parts: SplitResult) -> str:
    path = unquote(parts.path)
    if parts.hostname or parts.port or path in ("", "/"):
        raise ValueError("needs the absolute path of a socket: three slashes, as in unix:///run/redis.sock")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ValueError(f"has a path of more than {MAX_SOCKET_PATH} bytes, the most for a Unix socket")
    return path


# ---- the query ----------------------------------------------------------------------------------


def _query(parts: SplitResult) -> dict[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError("has a query that isn't of the form ?name=value&name=value") from None
    query = dict(pairs)
    if len(query) < len(pairs):
        raise ValueError("says something twice in its query")
    if "virtual_host" in query:  # what kombu calls it
        query.setdefault("db", query.pop("virtual_host"))
    return query


def _db(path: str, query: Mapping[str, str]) -> int:
    """The database, which may be in the path or in the query."""
    in_path = unquote(path).strip("/")
    in_query = query.get("db", in_path)
    if in_path and in_query != in_path:
        raise ValueError("names two databases, one in its path and one in its query")
    text = in_query.removeprefix("/")
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError("has a database that isn't a number, as in redis://host:6379/0 or ?db=0")
    return int(text or 0)


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("a whole number of seconds")
    return int(text)


def _name(text: str) -> str:
    if not text or any(not "!" <= letter <= "~" for letter in text):
        raise ValueError("a name of ASCII letters without spaces")
    return text


def _verification(text: str) -> str:
    word = text.lower().removeprefix("cert_")
    if word not in ("required", "optional", "none"):
        raise ValueError("required, optional or none")
    return word


def _truth(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("true or false")
    return word in ("true", "1", "yes")


def _file(text: str) -> str:
    if not text:
        raise ValueError("a path")
    return text


#: What says where Redis is, and what says how to talk to it. Time-outs are the service's own.
_PLACE = ("db", "master_name")
_OPTIONS: Mapping[str, Callable[[str], str | int | bool]] = {
    "health_check_interval": _seconds,
    "client_name": _name,
}
_TLS_OPTIONS: Mapping[str, Callable[[str], str | int | bool]] = {
    "ssl_cert_reqs": _verification,
    "ssl_check_hostname": _truth,
    "ssl_ca_certs": _file,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
}


def _option(kind: Kind, name: str, value: str) -> str | int | bool:
    readers = {**_OPTIONS, **_TLS_OPTIONS} if kind == "rediss" else _OPTIONS
    if name not in readers:
        known = ", ".join(("db", *(("master_name",) if kind == "sentinel" else ()), *readers))
        raise ValueError(f"has {name[:40]!r} in its query, where only these may be: {known}")
    try:
        return readers[name](value)
    except ValueError as error:
        raise ValueError(f"has a {name} in its query that isn't {error}") from None
