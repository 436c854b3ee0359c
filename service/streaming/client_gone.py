"""Tells whether a request's client is still connected.

It looks at gunicorn's socket, since Flask can't tell.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from typing import Any

from gevent.monkey import get_original

#: Seconds between two checks of a silent client.
CHECK_S = 0.5
#: An end, a reset, a connection that is gone; the system adds the last three by itself.
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL
#: The system's poll: gevent's would let other greenlets run at each look.
_poll: Callable[[], Any] = get_original("select", "poll")


class ClientGoneError(Exception):
    """The client closed its connection before its answer was complete."""


def checker(environ: Mapping[str, Any]) -> Callable[[], None]:
    """A function that raises :class:`ClientGoneError` once the client of this WSGI request has gone."""
    sock = environ.get("gunicorn.socket")

    def check() -> None:
        if sock is not None and _is_closed(sock):
            raise ClientGoneError

    return check


def _is_closed(sock: Any) -> bool:
    """Whether the client has ended or reset the connection.

    One that ends its half after the request counts as gone. What else it has sent, such as its next request,
    stays unread and doesn't hide the end. Asking needs no file descriptor, and a failure to ask says nothing.
    """
    fileno = sock.fileno()
    if fileno < 0:  # this process has closed it
        return True
    poll = _poll()
    poll.register(fileno, _GONE)
    try:
        return bool(poll.poll(0))
    except OSError:
        return False
