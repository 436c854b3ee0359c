"""What an error of Redis means: whether it heals by itself, and what a person has to do if it doesn't.

Standard library and redis-py only. The codes are those of Redis 7 and Valkey 9 (``src/server.c``,
``createSharedObjects``), the rest is redis-py's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from redis.exceptions import ResponseError


class Kind(StrEnum):
    """What is wrong, in a word for metrics."""

    AWAY = "away"
    LOADING = "loading"
    READ_ONLY = "read_only"
    NO_MASTER = "no_master"
    TOO_FEW_REPLICAS = "too_few_replicas"
    FULL = "full"
    NO_SPACE = "no_space"
    BUSY = "busy"
    CLUSTER = "cluster"
    UNBLOCKED = "unblocked"
    NO_PERMISSION = "no_permission"
    WRONG_PASSWORD = "wrong_password"  # noqa: S105 - a name, no password
    WRONG_TYPE = "wrong_type"
    OTHER = "other"

    @property
    def needs_person(self) -> bool:
        """Whether it lasts until somebody changes something."""
        return self in (Kind.NO_PERMISSION, Kind.WRONG_PASSWORD, Kind.WRONG_TYPE, Kind.OTHER)

    @property
    def is_full(self) -> bool:
        """Whether Redis has no room for a new request, and answers otherwise."""
        return self in (Kind.FULL, Kind.NO_SPACE)


#: The kind of each code with which Redis begins an error reply.
_KINDS = {
    "LOADING": Kind.LOADING,
    "READONLY": Kind.READ_ONLY,
    "MASTERDOWN": Kind.NO_MASTER,
    "NOREPLICAS": Kind.TOO_FEW_REPLICAS,
    "OOM": Kind.FULL,
    "MISCONF": Kind.NO_SPACE,
    "BUSY": Kind.BUSY,
    "CLUSTERDOWN": Kind.CLUSTER,
    "TRYAGAIN": Kind.CLUSTER,
    "UNBLOCKED": Kind.UNBLOCKED,
    "NOPERM": Kind.NO_PERMISSION,
    "NOAUTH": Kind.WRONG_PASSWORD,
    "WRONGPASS": Kind.WRONG_PASSWORD,
    "WRONGTYPE": Kind.WRONG_TYPE,
}

_TEXTS = {
    Kind.AWAY: "Redis can't be reached",
    Kind.LOADING: "Redis is reading its file (LOADING); it answers when it has read all of it",
    Kind.READ_ONLY: "Redis is a replica that takes no writes (READONLY). A failover ends this; "
    "otherwise set REDIS_URL to the master",
    Kind.NO_MASTER: "Redis is a replica without its master (MASTERDOWN). A failover ends this; "
    "otherwise set REDIS_URL to the master",
    Kind.TOO_FEW_REPLICAS: "Redis has fewer replicas than its min-replicas-to-write (NOREPLICAS). "
    "Start them, or lower it",
    Kind.FULL: "Redis is at its maxmemory (OOM). Finished requests expire and make room; "
    "otherwise raise maxmemory, or lower --result-ttl",
    Kind.NO_SPACE: "Redis can't write its file, perhaps because its disk is full (MISCONF). Make room",
    Kind.BUSY: "Redis is busy with a script (BUSY); SCRIPT KILL ends one that does not end by itself",
    Kind.CLUSTER: "Redis is a cluster that moves its keys or is down (CLUSTERDOWN, TRYAGAIN); "
    "a cluster is not supported: set REDIS_URL to a single Redis",
    Kind.UNBLOCKED: "a person ended a wait for messages (CLIENT UNBLOCK)",
    Kind.NO_PERMISSION: "Redis' user lacks a permission (NOPERM)",
    Kind.WRONG_PASSWORD: "Redis refuses the password or user (NOAUTH, WRONGPASS). "
    "Correct the one in REDIS_URL, or set it in Redis with ACL SETUSER",
    Kind.WRONG_TYPE: "a key of ours in Redis has a foreign type (WRONGTYPE). Rename it or delete it",
    Kind.OTHER: "Redis refuses a command",
}

_COMMAND = re.compile(r"permissions to run the '([\w|]+)' command")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps this process from using Redis: the ``kind``, and a ``text`` that says what to do."""

    kind: Kind
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """The trouble behind an error of redis-py, or of the socket below it."""
        kind = kind_of(error)
        return cls(kind, f"{_TEXTS[kind]}{_advice(kind, str(error))} [{str(error) or repr(error)}]")


def kind_of(error: BaseException) -> Kind:
    """The kind of an error of redis-py."""
    text = str(error)
    code = getattr(error, "status_code", None) or _of_pipeline(text).split(" ", 1)[0]
    if kind := _KINDS.get(code):
        return kind
    # In a script, and before Redis 7, a refused command has no code of its own.
    if "ACL failure" in text or "permission" in text or "user executing the script" in text:
        return Kind.NO_PERMISSION
    return Kind.OTHER if isinstance(error, ResponseError) else Kind.AWAY


def _of_pipeline(text: str) -> str:
    """Redis' own words: for a command of a pipeline, redis-py puts the command before them."""
    return text.partition(" of pipeline caused error: ")[2] or text


def _advice(kind: Kind, text: str) -> str:
    if kind is not Kind.NO_PERMISSION:
        return ""
    if found := _COMMAND.search(text):
        return f": grant it with ACL SETUSER <user> +{found[1]}"
    if "channel" in text:
        return ": grant it with ACL SETUSER <user> allchannels"
    return ": grant it with ACL SETUSER <user> ~inference* ~_kombu* ~*.pidbox*, or allkeys"
