"""A light client of OpenAI's streaming chat, for measuring any server that speaks it.

For each chunk the client only notes the time. It reads the JSON when the answer is complete, so that it uses
little of the machine that it measures.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

#: Seconds of silence after which a server is considered hung.
SILENCE_S = 600.0


class ClientError(Exception):
    """The server can't be reached, refused the request or broke off; the text is for a person."""


class StatusError(ClientError):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Chunk:
    """One server-sent event: ``at`` is when it arrived (``time.perf_counter`` seconds), ``data`` its JSON."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """One streamed request as its client saw it; times are in seconds.

    ``gaps_s`` are between consecutive chunks with text; ``started`` and ``ended`` are on
    ``time.perf_counter``. ``timings`` are the server's own figures, if it sends any.
    """

    started: float
    ended: float
    ttft_s: float
    gaps_s: tuple[float, ...]
    num_tokens: int
    text: str
    timings: dict[str, Any] | None


def served_model(url: str) -> str:
    """Name of the first model that the server at ``url`` lists. Raises :class:`ClientError`."""
    try:
        return str(get_json(url, "/v1/models")["data"][0]["id"])
    except LookupError as error:
        raise ClientError(f"{url} doesn't say which model it serves: {error}") from error


def get_json(url: str, path: str, api_key: str | None = None) -> dict[str, Any]:
    """What the server at ``url`` answers to a GET of ``path``. Raises :class:`ClientError`."""
    connection = _connect(url)
    try:
        connection.request("GET", _path(url, path), headers=_authorization(api_key))
        found: dict[str, Any] = json.loads(_checked(connection.getresponse()).read())
    except (OSError, http.client.HTTPException) as error:
        raise ClientError(f"{url} can't be reached: {error or type(error).__name__}") from error
    except ValueError as error:
        raise ClientError(f"{url} doesn't answer in JSON: {error}") from error
    finally:
        connection.close()
    return found


def chat_body(model: str, prompt: str, system: str | None, max_tokens: int, **options: Any) -> dict[str, Any]:
    """A streaming request with usage in its last chunk; ``options`` that are ``None`` are left out."""
    messages = [{"role": "system", "content": system}] if system else []
    return {
        "model": model,
        "messages": [*messages, {"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in options.items() if value is not None},
    }


def stream(url: str, body: dict[str, Any]) -> Iterator[Chunk]:
    """Post ``body`` as a chat completion and give each event as it arrives. Raises :class:`ClientError`."""
    connection = _connect(url)
    try:
        headers = _HEADERS | _authorization()
        connection.request("POST", _path(url, "/v1/chat/completions"), json.dumps(body), headers)
        yield from _events(_checked(connection.getresponse()))
    except (OSError, http.client.HTTPException) as error:
        raise ClientError(f"The connection to {url} failed: {error or type(error).__name__}") from error
    finally:
        connection.close()


def measure(url: str, body: dict[str, Any]) -> Sample:
    """Stream one answer to its end. Raises :class:`ClientError`."""
    started = time.perf_counter()
    chunks = list(stream(url, body))
    return _sample(started, time.perf_counter(), [(chunk.at, parse(chunk)) for chunk in chunks])


def parse(chunk: Chunk) -> dict[str, Any]:
    """The event's JSON. Raises :class:`ClientError` when it is an error."""
    event: dict[str, Any] = json.loads(chunk.data)
    if "error" in event:
        raise ClientError(str(event["error"].get("message", event["error"])))
    return event


def text_of(event: dict[str, Any]) -> str:
    """The text that an event adds to the answer."""
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}


def _authorization(api_key: str | None = None) -> dict[str, str]:
    """The header with ``api_key`` or else the key in ``INFERENCE_API_KEY``; nothing without a key."""
    key = api_key or os.environ.get("INFERENCE_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=SILENCE_S)


def _path(url: str, path: str) -> str:
    return urlsplit(url).path.removesuffix("/").removesuffix("/v1") + path


def _checked(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if response.status == http.client.OK:
        return response
    body = response.read().decode(errors="replace")
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = body[:200]
    raise StatusError(response.status, message)


def _events(response: http.client.HTTPResponse) -> Iterator[Chunk]:
    """Read the events with ``read1``, which returns what has arrived; ``readline`` might wait for more."""
    rest = b""
    while received := response.read1(65536):
        at = time.perf_counter()
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            if line.startswith(b'data: {"error"'):
                parse(Chunk(at, line[6:]))  # raises
            elif line.startswith(b"data: {"):
                yield Chunk(at, line[6:])
            elif line.startswith(b"data: [DONE]"):
                return
    raise ClientError("The answer broke off.")


def _sample(started: float, ended: float, events: list[tuple[float, dict[str, Any]]]) -> Sample:
    texts = [(at, text) for at, event in events if (text := text_of(event))]
    if not texts:
        raise ClientError("The answer is empty.")
    usage: dict[str, int] = next((event["usage"] for _, event in reversed(events) if event.get("usage")), {})
    times = [at for at, _ in texts]
    return Sample(
        started=started,
        ended=ended,
        ttft_s=times[0] - started,
        gaps_s=tuple(after - before for before, after in pairwise(times)),
        num_tokens=int(usage.get("completion_tokens", len(texts))),
        text="".join(text for _, text in texts),
        timings=next((event["timings"] for _, event in reversed(events) if event.get("timings")), None),
    )
