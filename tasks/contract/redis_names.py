"""The names of everything kept in Redis.

The scripts in ``tasks/store/scripts`` build the same names from :data:`PREFIX`.
"""

from __future__ import annotations

PREFIX = "inference:"
#: kombu's lists of one queue: the plain name, then the name, this separator and the priority.
PRIORITY_LISTS = ("", "\x06\x163", "\x06\x166", "\x06\x169")

#: Ids of running requests by claim time (sorted set).
RUNNING = PREFIX + "running"
#: Ids of requests by the time their time limit or, while they wait, ``--queue-timeout`` ends (sorted set).
DEADLINES = PREFIX + "deadlines"
#: Ids of accepted requests that are not over, by the time of the janitor's last look (sorted set).
ACTIVE = PREFIX + "active"
#: Reserved messages by their delivery tags (hash), and when each one's lease was renewed (sorted set).
UNACKED = PREFIX + "unacked"
LEASES = PREFIX + "leases"
#: Outcomes of finished requests; the first API process that reads one removes it (list).
OUTCOMES = PREFIX + "outcomes"
#: Finished requests that are kept, the oldest first, as ``id bytes`` (list); their bytes in all (string).
RESULTS = PREFIX + "results"
RESULTS_BYTES = PREFIX + "results_bytes"
#: How often requests were put back into the queue, by reason (hash), see :meth:`RequestStore.num_requeued`.
REQUEUED = PREFIX + "requeued"
#: Counts since the store began (hash): finished requests by state, ``generated_tokens``, ``refused:CODE``.
TOTALS = PREFIX + "totals"
#: The latest finished requests, newest first, without their texts (list).
RECENT = PREFIX + "recent"
#: Redis's time when a script last looked, at most some seconds old while the service lives (string).
CLOCK = PREFIX + "clock"
#: Live children by the time their registration ends (sorted set).
CHILDREN = PREFIX + "children"
#: Name → description of every model that a worker has served (hash).
MODELS = PREFIX + "models"
#: Workers that ended because they could not go on, by the time their last words are forgotten (sorted set).
LAST_WORDS = PREFIX + "last_words"
#: Messages that no worker could read, newest first: JSON with ``queue``, ``why``, ``time`` and the
#: beginning of the ``message`` (list).
DEAD_LETTERS = PREFIX + "dead_letters"
#: Channel that announces a free place in a queue; the payload is the model's name.
FREED = PREFIX + "freed"


def record(request_id: str) -> str:
    """The request's record (hash)."""
    return f"{PREFIX}request:{request_id}"


def log(request_id: str) -> str:
    """The request's events (stream; entry ``seq-0``, field ``e``)."""
    return f"{PREFIX}log:{request_id}"


def events(api: str) -> str:
    """Channel of one API process; a payload is a JSON list of ``[id, event]`` pairs."""
    return f"{PREFIX}events:{api}"


def named(digest: str) -> str:
    """What an ``Idempotency-Key`` stands for: a fingerprint and a request's id (string)."""
    return f"{PREFIX}key:{digest}"


def claims(model: str) -> str:
    """Times of the latest claims of a model's requests, newest first (list); they give the drain rate."""
    return f"{PREFIX}claims:{model}"


def child(child_id: str) -> str:
    """One child's registration, with the fields that the last release knows (JSON with a time to live)."""
    return f"{PREFIX}child:{child_id}"


def heartbeat(child_id: str) -> str:
    """One child's registration, with all fields (JSON with a time to live)."""
    return f"{PREFIX}heartbeat:{child_id}"


def bell(queue: str) -> str:
    """Holds a token when a queue may have messages (list)."""
    return f"{PREFIX}bell:{queue}"


def last_words(worker: str) -> str:
    """Why a worker ended (JSON with a time to live)."""
    return f"{PREFIX}last_words:{worker}"
