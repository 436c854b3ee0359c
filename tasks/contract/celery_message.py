"""A request's Celery message, as the queue's list holds it. Standard library only.

The form is Celery's protocol 2 (https://docs.celeryq.dev/en/stable/internals/protocol.html) as kombu's
virtual transports write it (``kombu.transport.virtual.Channel``), so a worker, ``celery inspect`` and Flower
treat it like any other task's message.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from tasks.contract import versions
from tasks.contract.messages import TASK_NAME, GenerateRequest, queue_name
from tasks.contract.prefixes import HEADER, prefixes

#: Callbacks, errbacks, a chain and a chord: none.
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def celery_message(
    request: GenerateRequest, delivery_tag: str, more_headers: Mapping[str, str], owner: str = ""
) -> str:
    """The message that tells a worker to generate ``request``.

    Args:
        request: its id becomes the task's.
        delivery_tag: names this one delivery.
        more_headers: for example the trace's context.
        owner: whose request it is.
    """
    body = json.dumps([[request.id], {}, _EMBED])
    message = {
        "body": b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {**_headers(request, owner), **more_headers},
        "properties": {
            "correlation_id": request.id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue_name(request.model)},
            "priority": request.priority.celery,
            "body_encoding": "base64",
            "delivery_tag": delivery_tag,
        },
    }
    return json.dumps(message)


def _headers(request: GenerateRequest, owner: str) -> dict[str, Any]:
    return {
        "lang": "py",
        "task": TASK_NAME,
        "id": request.id,
        "root_id": request.id,
        "parent_id": None,
        "group": None,
        "argsrepr": repr([request.id]),
        "kwargsrepr": "{}",
        "retries": 0,
        "timelimit": [None, None],
        "eta": None,
        "expires": None,
        "ignore_result": True,
        versions.FIELD: request.version,
        HEADER: prefixes(request, owner),
    }
