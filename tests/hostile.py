"""Clients that mean harm: each kind does one thing to a connection, again and again."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

HOST = b"Host: 127.0.0.1\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
#: Seconds between two small pieces of what comes slowly.
PAUSE_S = 0.05

#: Gets a new connection, a source of randomness, and what is set when it has to end.
Kind = Callable[[socket.socket, random.Random, threading.Event], None]


def requests_without_end(sock: socket.socket, _: random.Random, enough: threading.Event) -> None:
    """Always have a next request ready."""
    while not enough.is_set():
        sock.sendall((b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n") * 200)
        sock.setblocking(False)
        with suppress(BlockingIOError):
            while sock.recv(1 << 20):
                pass
        sock.settimeout(20)


def body_without_end(sock: socket.socket, _: random.Random, enough: threading.Event) -> None:
    """Send a body that is far too long, and don't stop when it is refused."""
    sock.sendall(HEAD + b"Content-Length: 100000000000\r\n\r\n")
    while not enough.is_set():
        sock.sendall(b"x" * (1 << 20))


def crumbs_without_end(sock: socket.socket, _: random.Random, enough: threading.Event) -> None:
    """Send a body in chunks of one byte."""
    sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while not enough.is_set():
        sock.sendall(b"1\r\nx\r\n" * 100_000)


def slow_head(sock: socket.socket, _: random.Random, enough: threading.Event) -> None:
    """Send a head byte by byte."""
    for byte in HEAD + b"X: " + b"a" * 8000:
        if enough.wait(PAUSE_S):
            return
        sock.sendall(bytes([byte]))


def slow_body(sock: socket.socket, _: random.Random, enough: threading.Event) -> None:
    """Send a body byte by byte."""
    sock.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
    while not enough.wait(PAUSE_S):
        sock.sendall(b" ")


def silence(_: socket.socket, __: random.Random, enough: threading.Event) -> None:
    """Send nothing."""
    enough.wait()


def prefer_bomb(sock: socket.socket, pick: random.Random, enough: threading.Event) -> None:
    """Send a header that was costly to read, of any length that a head may have."""
    size = pick.choice((50, 500, 2000))
    value = b"a;" * size + b" " * 2 * size + b'"'
    body = b'{"prompt": 1}'
    sock.sendall(HEAD + b"Prefer: " + value + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    sock.recv(1 << 16)
    enough.wait(PAUSE_S)


def huge_head(sock: socket.socket, pick: random.Random, enough: threading.Event) -> None:
    """Send more headers, or longer ones, than anybody needs."""
    sock.sendall(HEAD + pick.choice((b"X: " + b"a" * 100_000, b"X: a\r\n" * 10_000)) + b"\r\n\r\n")
    sock.recv(1 << 16)
    enough.wait(PAUSE_S)


def garbage(sock: socket.socket, pick: random.Random, enough: threading.Event) -> None:
    """Send random bytes, some of them after the beginning of a request."""
    start = pick.choice((b"", b"GET ", HEAD, HEAD + b"Transfer-Encoding: chunked\r\n\r\n"))
    sock.sendall(start + pick.randbytes(pick.randrange(1, 5000)) + b"\r\n\r\n")
    sock.shutdown(socket.SHUT_WR)
    sock.recv(1 << 16)
    enough.wait(PAUSE_S)


KINDS: tuple[Kind, ...] = (
    *(requests_without_end, body_without_end, crumbs_without_end, slow_head, slow_body, silence),
    *(prefer_bomb, huge_head, garbage),
)


@contextmanager
def pestered(ports: Sequence[int], kind: Kind, num: int = 2) -> Iterator[None]:
    """While the block runs, ``num`` clients connect to one of ``ports`` again and again, and do harm."""
    enough = threading.Event()

    def go_on(seed: int) -> None:
        pick = random.Random(seed)
        while not enough.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", pick.choice(ports)), 20) as sock:
                kind(sock, pick, enough)

    threads = [threading.Thread(target=go_on, args=(seed,)) for seed in range(num)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join(60)
