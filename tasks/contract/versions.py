"""Format versions of what processes write for each other, since releases run side by side.

The rule, for requests, events and registrations alike:

- A reader drops fields that it doesn't know (:mod:`tasks.contract.tolerant`), and takes defaults for missing
  ones. So a new field with a default does not raise the version.
- Only a change that an older reader would misread raises the version: a field that it must not drop, another
  meaning of a field, a new state. A new finish reason or error code does not: readers pass them on. A writer
  writes the lowest version that has everything it uses, so that older readers can read as much as possible.
- A reader that meets a newer version than it knows leaves the object alone and says so. A worker leaves the
  request in its queue, for a worker that knows the version; an API process doesn't list the child.
- An object without a version is version 1, and version 1 need not be written.

The numbers here are the newest versions that this code knows. To raise one, upgrade all readers before any
writer uses it: for requests the workers first, for events and registrations the APIs first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Name of the version field in JSON, in a record's hash and in a message's headers.
FIELD = "v"
#: A request: its message in the queue and its record.
REQUEST = 1
#: Entries of a request's log, with the end in the last one; also outcomes and finished requests.
EVENT = 1
#: Children's descriptions of themselves and of the models that they serve.
REGISTRATION = 1


class UnsupportedVersionError(Exception):
    """An object has a newer format than this process knows; a newer process has to read it.

    Attributes:
        what: what it is, for example ``request chatcmpl-1``.
        version: its format version.
        known: the newest version that this process knows.
    """

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"The {what} has format version {version}, and this process knows versions up to {known}: "
            "upgrade it to the release that wrote this"
        )
        self.what, self.version, self.known = what, version, known


def check(what: str, raw: Mapping[str, Any], known: int) -> None:
    """Raise :class:`UnsupportedVersionError` if the version in ``raw`` is above ``known``."""
    version = raw.get(FIELD, 1)
    if version != 1 and not (type(version) is int and version <= known):
        raise UnsupportedVersionError(what, version, known)


def written(version: int) -> dict[str, int]:
    """The version as a JSON field; empty for version 1."""
    return {} if version == 1 else {FIELD: version}
