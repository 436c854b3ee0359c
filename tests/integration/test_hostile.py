"""Clients that mean harm, at a real API process: all others are served meanwhile, and nothing is a 500."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse

import httpx
import psutil
import pytest

from service.intake.header_sizes import MAX_CHARS
from service.server import capacity
from tasks.contract.messages import State
from tests.hostile import HEAD, KINDS, Kind, pestered
from tests.integration.http_rig import Api, ScriptedWorker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def api(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, first_event_timeout=1, heartbeat=0.5)
    served.wait_ready()
    yield served
    served.stop()


def connect(api: Api) -> socket.socket:
    return socket.create_connection(("127.0.0.1", api.port), timeout=20)


def post(body: bytes, head: bytes = b"") -> bytes:
    """A request for a text completion."""
    return HEAD + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def completion(prompt: str, *, stream: bool = False) -> bytes:
    return post(json.dumps({"prompt": prompt, "stream": stream}).encode())


def status_of(sock: socket.socket) -> int:
    answer = HTTPResponse(sock)
    answer.begin()
    answer.read()
    return answer.status


@contextmanager
def held_stream(api: Api, worker: ScriptedWorker) -> Iterator[tuple[socket.socket, str]]:
    """A stream that has its first token and goes on; the request's id."""
    known = set(worker.held)
    with connect(api) as sock:
        sock.sendall(completion("hold", stream=True))
        yield sock, str(wait_until(lambda: set(worker.held) - known).pop())


def read_to_done(sock: socket.socket) -> bytes:
    received = b""
    while b"data: [DONE]" not in received and (piece := sock.recv(65536)):
        received += piece
    return received


def is_cancelled(worker: ScriptedWorker, request_id: str) -> bool:
    record = worker.store.fetch(request_id)
    return record is not None and record.state is State.CANCELLED


# ---- none holds up the others ---------------------------------------------------------------------


def test_a_header_that_is_costly_to_read_is_refused(api: Api) -> None:
    with connect(api) as bomb:
        value = b"a;" * 2000 + b" " * 4000 + b'"'
        bomb.sendall(post(b'{"prompt": "x"}', b"Prefer: " + value + b"\r\n"))
        assert httpx.get(f"{api.url}/healthz", timeout=20).status_code == 200
        assert status_of(bomb) == 431


@pytest.mark.parametrize("name", MAX_CHARS)
def test_headers_are_no_longer_than_needed(api: Api, name: str) -> None:
    answer = api.http.post(
        "/v1/completions",
        content=b'{"prompt": "x"}',
        headers={"Content-Type": "application/json", name: "a" * (MAX_CHARS[name] + 1)},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (431, name, "header_too_large")


@pytest.mark.parametrize("head", [b"X: " + b"a" * 8190, b"X: a\r\n" * 80])
def test_heads_are_bounded(api: Api, head: bytes) -> None:
    with connect(api) as sock:
        sock.sendall(HEAD + head + b"\r\n\r\n")
        assert status_of(sock) == 431


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_no_client_keeps_the_others_waiting(api: Api, worker: ScriptedWorker, kind: Kind) -> None:
    with held_stream(api, worker) as (sock, request_id), pestered([api.port], kind):
        for number in range(5):
            assert httpx.get(f"{api.url}/healthz", timeout=20).status_code == 200
            assert worker.say(request_id, f"w{number}")
        worker.finish(request_id)
        received = read_to_done(sock)
    assert all(f'"w{number}"'.encode() in received for number in range(5))


def test_a_body_that_nobody_wants_is_answered(api: Api) -> None:
    with connect(api) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n\r\n")
        assert status_of(sock) == 200
        sock.sendall(b"x" * 3_000_000 + b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of(sock) == 404


# ---- connections and open files -------------------------------------------------------------------

#: Open files that the process may have, and with it connections.
FILES = 256
ROOM = FILES - capacity.RESERVE - capacity.SPARE


@pytest.fixture(scope="module")
def narrow(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    """An API process that may have few files open."""
    served = Api(valkey_url, max_files=(64, FILES), first_event_timeout=1)
    served.wait_ready()
    yield served
    served.stop()


def idle(api: Api, num: int) -> ExitStack:
    """Connections that send nothing, or half of a head; the API may have closed some."""
    stack = ExitStack()
    for number in range(num):
        sock = stack.enter_context(connect(api))
        if number % 2:
            with suppress(OSError):
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHo")
    return stack


def test_the_soft_limit_is_raised(narrow: Api) -> None:
    [api_process] = _children(narrow.process.pid)
    assert resource.prlimit(api_process, resource.RLIMIT_NOFILE) == (FILES, FILES)


def test_idle_connections_cancel_nobody(narrow: Api, worker: ScriptedWorker) -> None:
    with held_stream(narrow, worker) as (sock, request_id):
        with idle(narrow, 3 * FILES):
            wait_until(lambda: narrow.complete("a b").status_code == 200)
            assert worker.say(request_id, "two")
        worker.finish(request_id)
        assert b'"two"' in read_to_done(sock)


def test_more_running_requests_than_connections_are_refused_clearly(
    narrow: Api, worker: ScriptedWorker
) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(held_stream(narrow, worker)) for _ in range(ROOM)]
        answer = wait_until(lambda: _refused(narrow))
        assert answer is not None
        assert answer.json()["error"]["code"] == "too_many_connections"
        assert answer.headers["Retry-After"] == "1"
        for sock, request_id in streams:
            assert worker.say(request_id, "two")
            worker.finish(request_id)
            assert b'"two"' in read_to_done(sock)
    assert wait_until(lambda: narrow.complete("a b").status_code == 200)
    assert 'reason="too_many_connections"} 0' not in narrow.http.get("/metrics").text


def _refused(api: Api) -> httpx.Response | None:
    answer = httpx.get(f"{api.url}/healthz", timeout=20)
    return answer if answer.status_code == 503 else None


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def test_without_room_for_connections_it_does_not_start(valkey_url: str) -> None:
    api = Api(valkey_url, max_files=(64, 100))
    try:
        assert api.process.wait(30) == 1
    finally:
        api.stop()


# ---- who has gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_surplus_byte_hides_no_end(api: Api, worker: ScriptedWorker, stream: bool) -> None:
    known = set(worker.held)
    with connect(api) as sock:
        sock.sendall(completion("hold", stream=stream))
        request_id = str(wait_until(lambda: set(worker.held) - known).pop())
        sock.sendall(b"\r\n")
    wait_until(lambda: is_cancelled(worker, request_id))


def test_the_next_request_may_come_before_the_answer(api: Api, worker: ScriptedWorker) -> None:
    with held_stream(api, worker) as (sock, request_id):
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert httpx.get(f"{api.url}/healthz").status_code == 200
        assert worker.say(request_id, "two")
        worker.finish(request_id)
        received = b""
        while piece := sock.recv(65536):
            received += piece
    assert b"data: [DONE]" in received
    assert received.endswith(b'{"status":"ok"}\n')


# ---- malformed requests ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunks",
    [b"x\r\n", b"5\r\nabcdefgh\r\n", b"-1\r\n\r\n", b"1;\x01\r\nx\r\n", b"0\r\nA b: c\r\n\r\n", b"\r\n"],
)
def test_malformed_chunks_are_the_clients_fault(api: Api, chunks: bytes) -> None:
    with connect(api) as sock:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        answer = HTTPResponse(sock)
        answer.begin()
        assert answer.status == 400
        assert json.loads(answer.read())["error"]["code"] == "bad_http"


def test_a_body_that_ends_early_is_the_clients_fault(api: Api) -> None:
    with connect(api) as sock:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab")
        sock.shutdown(socket.SHUT_WR)
        assert status_of(sock) == 400


def test_script_name_moves_no_path(api: Api) -> None:
    with connect(api) as sock:
        sock.sendall(b"GET /x/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nSCRIPT_NAME: /x\r\n\r\n")
        assert status_of(sock) == 404
