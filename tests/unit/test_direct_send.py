"""Sending directly to a client: whole chunks or none, in order, and a full socket loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from gevent import socket

from service.streaming.direct_send import DirectSender

pytestmark = pytest.mark.unit

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The server's socket and the client's."""
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def wire(sock: object, protocol: str = "HTTP/1.1") -> DirectSender | None:
    return DirectSender.of({"gunicorn.socket": sock, "SERVER_PROTOCOL": protocol})


def test_a_message_is_one_chunk(pair: Pair) -> None:
    ours, theirs = pair
    way = wire(ours)
    assert way is not None
    assert way.try_send(b"data: 0123456789\n\n")
    assert theirs.recv(100) == b"12\r\ndata: 0123456789\n\n\r\n"


def test_only_plain_chunked_answers_have_it(pair: Pair) -> None:
    assert wire(pair[0], "HTTP/1.0") is None
    assert wire(pair[0], "HTTP/2.0") is None
    assert wire(object()) is None
    assert wire(None) is None


def test_a_full_socket_takes_no_more_and_loses_nothing(pair: Pair) -> None:
    ours, theirs = pair
    way, sent = wire(ours), 0
    assert way is not None
    data = b"x" * 0x10001
    while way.try_send(data):
        sent += 1
    chunk = b"10001\r\n" + data + b"\r\n"
    received = bytearray()

    def read() -> None:
        while len(received) < sent * len(chunk):
            received.extend(theirs.recv(1 << 20))

    reader = gevent.spawn(read)
    way.flush()
    reader.get(timeout=10)
    assert bytes(received) == sent * chunk
    assert way.try_send(b"again")


def test_a_client_that_has_gone_is_left_to_the_long_way(pair: Pair) -> None:
    ours, theirs = pair
    way = wire(ours)
    assert way is not None
    theirs.close()
    assert not way.try_send(b"data")
