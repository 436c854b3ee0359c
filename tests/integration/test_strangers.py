"""What a real API process tells strangers: other hosts, origins and encodings, and any bytes at all."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.integration.http_rig import Api, ScriptedWorker
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PAGE = "https://page.example"


@pytest.fixture(scope="module")
def api(valkey_url: str, worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    log = tmp_path_factory.mktemp("log") / "api.log"
    served = Api(valkey_url, log, first_event_timeout=1, request_timeout=2, allowed_hosts="box")
    served.wait_ready()
    yield served
    served.stop()
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def keyed(valkey_url: str, worker: ScriptedWorker) -> Iterator[Api]:
    served = Api(valkey_url, api_keys="key", cors_origins=f"{PAGE}, http://other.example")
    served.wait_ready()
    yield served
    served.stop()


# ---- hosts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:8000", "box:80"]
)
def test_hosts_of_this_machine_are_answered(api: Api, host: str) -> None:
    assert api.http.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil", "", "a:b:c", "[::2]"]
)
@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/nothing"])
def test_other_hosts_are_not(api: Api, host: str, path: str) -> None:
    answer = api.http.get(path, headers={"Host": host})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (403, "host_not_allowed", "Host")
    assert "--allowed-hosts" in error["message"]


def test_with_keys_any_host_is_answered(keyed: Api) -> None:
    headers = {"Host": "box.example", "Authorization": "Bearer key"}
    assert keyed.http.get("/v1/models", headers=headers).status_code == 200


def test_a_client_of_old_sends_no_host(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.port)) as sock:
        sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert sock.makefile("rb").readline().endswith(b" 200 OK\r\n")


# ---- keys -----------------------------------------------------------------------------------------


def test_an_open_api_warns(valkey_url: str, worker: ScriptedWorker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    served = Api(valkey_url, log=log, host="0.0.0.0")
    served.wait_ready()
    assert "[warning  ] No API keys: everybody who reaches 0.0.0.0" in log.read_text()
    assert served.http.get("/v1/models", headers={"Host": "box"}).status_code == 200
    served.stop()


def test_keys_without_a_key_end_the_start(valkey_url: str) -> None:
    served = Api(valkey_url, api_keys="")
    try:
        assert served.process.wait(30) != 0
    finally:
        served.stop()


# ---- web pages of other origins -------------------------------------------------------------------


def preflight(api: Api, origin: str) -> httpx.Response:
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,prefer",
    }
    return api.http.options("/v1/chat/completions", headers={"Origin": origin, **asked})


def test_a_preflight_needs_no_key(keyed: Api) -> None:
    answer = preflight(keyed, PAGE)
    assert answer.status_code == 204
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert answer.headers["Access-Control-Allow-Headers"] == "authorization,prefer"
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize("status", [200, 401])
def test_a_page_reads_answers_and_errors(keyed: Api, status: int) -> None:
    key = {"Authorization": "Bearer key"} if status == 200 else {}
    answer = keyed.http.get("/v1/models", headers={"Origin": PAGE, **key})
    assert answer.status_code == status
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "Location" in answer.headers["Access-Control-Expose-Headers"]


def test_pages_of_other_origins_are_not_allowed(keyed: Api, api: Api) -> None:
    for served, origin in ((keyed, "https://evil.example"), (api, PAGE)):
        answer = preflight(served, origin)
        assert answer.status_code == 204
        assert not [name for name in answer.headers if name.startswith("access-control")]


# ---- bodies and answers ---------------------------------------------------------------------------


def test_a_byte_order_mark_is_skipped(api: Api) -> None:
    body = b"\xef\xbb\xbf" + b'{"prompt": "a b"}'
    answer = api.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.json()["choices"][0]["text"] == "ab"


def test_a_compressed_body_is_told_so(api: Api) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = api.http.post("/v1/completions", content=b"\x1f\x8b", headers=headers)
    assert (answer.status_code, answer.headers["Accept-Encoding"]) == (415, "identity")
    assert answer.json()["error"]["param"] == "Content-Encoding"


@pytest.mark.parametrize("path", ["/v1/models", "/nothing", "/metrics", "/", "/v1/requests/x"])
def test_no_browser_guesses_what_an_answer_is(api: Api, path: str) -> None:
    assert api.http.get(path).headers["X-Content-Type-Options"] == "nosniff"


def test_the_log_has_no_terminal_escapes(valkey_url: str, worker: ScriptedWorker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    served = Api(valkey_url, log=log, log_prompts=True)
    served.wait_ready()
    served.http.get("/v1/%1b[31mevil")
    served.http.get("/v1/%c2%9b2J%e2%80%aeevil")
    served.complete("\x1b[2J\u202e\x9b evil prompt\r\n2026 [info] forged")
    with socket.create_connection(("127.0.0.1", served.port)) as sock:
        sock.sendall(b"GET \x1b[31m/evil HTTP/1.1\r\n\x1b: \x9b\r\n\r\n")
        sock.makefile("rb").read()
    wait_until(lambda: log.read_text(errors="replace").count("evil") >= 4)
    written = log.read_bytes().decode()
    assert not [c for c in written if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c == "\u202e"]
    assert not [line for line in written.splitlines() if line.startswith("2026 ")]
    assert served.stop() == 0


# ---- any bytes ------------------------------------------------------------------------------------

PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/requests/x",
    "/v1/requests/x/events",
    "/v1/models/x",
    "/",
)
NAMES = (
    *("Prefer", "Idempotency-Key", "Last-Event-ID", "Content-Type", "Content-Encoding", "Content-Length"),
    *(
        "Transfer-Encoding",
        "Host",
        "Origin",
        "Access-Control-Request-Method",
        "Expect",
        "Connection",
        "Cookie",
    ),
    *("Authorization", "If-None-Match", "Range", "X-Forwarded-Proto", "SCRIPT_NAME", "PATH_INFO", "Upgrade"),
    *("traceparent", "Access-Control-Request-Headers", "Accept", "If-Modified-Since"),
)
line = st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))
text = st.text(st.characters(exclude_categories=()), max_size=10)
likely = st.sampled_from(
    [
        "application/json",
        "chunked",
        "100-continue",
        "wait=1",
        "respond-async",
        "*",
        "1",
        '"',
        "a;b",
        "http",
        "GET",
    ]
).map(str.encode)
headers = st.lists(st.tuples(st.sampled_from(NAMES), likely | line), max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "prompt",
    "messages",
    "model",
    "stop",
    "max_tokens",
    "temperature",
    "stream",
    "seed",
    "priority",
    "tools",
)
part = st.fixed_dictionaries({"type": st.just("text") | text, "text": values})
message = st.fixed_dictionaries({"role": st.just("user") | text, "content": text | st.lists(part | values)})
bodies = (
    st.binary(max_size=100)
    | values.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries(
        {}, optional={**dict.fromkeys(FIELDS, values), "messages": st.lists(message), "prompt": text}
    ).map(lambda value: json.dumps(value).encode())
)


def exchange(api: Api, raw: bytes) -> list[int]:
    """The status of each answer to ``raw``, after which the client sends no more."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        stream = sock.makefile("rb")
        found = []
        while head := stream.readline():
            found.append(int(head.split()[1]))
            size = 0
            while (field := stream.readline()) not in (b"\r\n", b""):
                name, _, value = field.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            stream.read(size)
        return found


# Shrinking would take minutes: each example is an exchange.
any_example = settings(
    max_examples=300,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@any_example
@given(st.sampled_from(["POST", "GET", "DELETE", "OPTIONS", "HEAD"]), st.sampled_from(PATHS), headers, bodies)
def test_no_header_and_no_body_is_a_500(
    api: Api, method: str, path: str, headers: list[tuple[str, bytes]], body: bytes
) -> None:
    given_ = {name.lower() for name, _ in headers}
    lines = [
        f"{method} {path} HTTP/1.1".encode(),
        *(name.encode() + b": " + value for name, value in headers),
    ]
    if "host" not in given_:
        lines.append(b"Host: 127.0.0.1")
    if "content-type" not in given_:
        lines.append(b"Content-Type: application/json")
    if not given_ & {"content-length", "transfer-encoding"}:
        lines.append(b"Content-Length: %d" % len(body))
    statuses = exchange(api, b"\r\n".join(lines) + b"\r\n\r\n" + body)
    assert set(statuses) & {500, 502, 504} == set(), statuses


@any_example
@given(st.binary(max_size=300) | st.lists(line, max_size=6).map(b"\r\n".join))
def test_no_bytes_are_a_500(api: Api, raw: bytes) -> None:
    for prefix in (
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET /%ff",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        assert 500 not in exchange(api, prefix + raw)
