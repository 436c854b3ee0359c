"""Names of a chat's leading messages, by which a worker's parent recognises a conversation.

The API cannot tokenize, so the names are digests of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from tasks.contract.messages import GenerateRequest

#: Name of the message header that carries the digests.
HEADER = "prefixes"
#: Most digests sent with a request: the ones of its longest prefixes.
MAX_SENT = 16


def prefixes(request: GenerateRequest, owner: str = "") -> list[str]:
    """Digests of a chat's leading messages, shortest prefix first; none for a completion.

    Chats of different owners have no digest in common.
    """
    digest, found = blake2b(owner.encode(), digest_size=8), []
    for message in request.messages or ():
        digest.update(f"{message.role}\0{message.content}\0".encode())
        found.append(digest.hexdigest())
    return found[-MAX_SENT:]


def prefixes_in(headers: Mapping[str, Any]) -> list[str]:
    """The digests in a message's headers; anything else that another release put there is left out."""
    found = headers.get(HEADER)
    return [name for name in found if isinstance(name, str)] if isinstance(found, list | tuple) else []
