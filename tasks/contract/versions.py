"""Which formats this code knows of what processes write for each other: releases run side by side.

The rule, for requests, events and registrations alike:

- A reader drops fields that it doesn't know (:mod:`tasks.contract.tolerant`), and takes defaults for missing
  ones. So a new field with a default does not raise the version.
- The version is raised only by what an older reader would misread: a field that it must understand and not
  drop, another meaning of a field, a new state or finish reason. Writers then write the lowest version that
  has all that they use, so that older readers take what they can.
- A reader that meets a version above the one it knows leaves it alone and says so. A worker leaves the
  request in its queue, for a worker that knows it; an API process doesn't list the child.
- What carries no version is version 1, and a version 1 need not be written.

What is here is the newest version that this code knows. Code that raises one is brought to all readers
before any writer uses it: for requests workers first, for events and registrations APIs first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Name of a version wherever it is kept: JSON, the record's hash, a message's headers.
FIELD = "v"
#: A request: its message in the queue and its record.
REQUEST = 1
#: Entries of a request's log, with the end that the last of them has; outcomes and finished requests, too.
EVENT = 1
#: What children say of themselves and of the models that they serve.
REGISTRATION = 1


class UnsupportedVersionError(Exception):
    """Something is of a newer format than this process knows: a newer process has to read it.

    Attributes:
        what: what it is, for example ``request chatcmpl-1``.
        version: the one that it has.
        known: the newest one that this process knows.
    """

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"The {what} has format version {version}, and this process knows versions up to {known}: "
            "upgrade it to the release that wrote this"
        )
        self.what, self.version, self.known = what, version, known


def check(what: str, raw: Mapping[str, Any], known: int) -> None:
    """Raise :class:`UnsupportedVersionError` where the version in ``raw`` is above ``known``."""
    version = raw.get(FIELD, 1)
    if version != 1 and not (type(version) is int and version <= known):
        raise UnsupportedVersionError(what, version, known)


def written(version: int) -> dict[str, int]:
    """The version as a part of JSON: nothing for version 1."""
    return {} if version == 1 else {FIELD: version}
