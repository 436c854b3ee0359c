"""``python -m loadtest.burst``: many clients submit at the same moment, far more than the queue holds.

Each sends an asynchronous request on a connection of its own. The report counts the kinds of answers and says
how long they took.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

import click

from loadtest.compare.servers import Setting, ours, running
from service.client.api_client import served_model
from service.weights.model_files import default_model
from tasks.contract.percentile import percentile

#: What became of a request that got no answer in time, or whose connection broke.
TIMED_OUT, BROKEN = "timed out", "connection broke"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client got: the status and the error's code, or why there was no answer.

    ``retry_after_s`` is what a refused client was told to wait, 0 without; ``took_s`` are its own
    seconds, from the first packet on.
    """

    kind: str
    took_s: float
    retry_after_s: float = 0.0


@click.command()
@click.option("--url", help="A running service; default: one is started, with the default model.")
@click.option("--clients", default=2000, show_default=True, help="Requests at the same moment.")
@click.option(
    "--queue-limit", default=64, show_default=True, help="Requests that may wait, if it starts one."
)
@click.option("--timeout", default=60.0, show_default=True, help="Seconds after which a client gives up.")
def main(url: str | None, clients: int, queue_limit: int, timeout: float) -> None:
    """Send many requests at once, and count how many were accepted and refused, and how fast."""
    raise_file_limit()
    with ExitStack() as stack:
        if url is None:
            setting = Setting(default_model(), n_ctx=1024, slots=16, threads=2)
            server = ours(setting, workers=None, extra=("--queue-limit", str(queue_limit)))
            url = stack.enter_context(running(server)).url
        model = served_model(url)
        answers = asyncio.run(burst(url, clients, timeout, model=model))
        [alone] = asyncio.run(burst(url, 1, timeout, model=model))
    for line in report(answers):
        click.echo(line)
    click.echo(f"one more client, alone: {alone.kind} after {alone.took_s * 1e3:.1f} ms")


def raise_file_limit() -> None:
    """Allow this process as many open files as it may have: each client needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def burst(url: str, clients: int, timeout_s: float, **fields: object) -> list[Answer]:
    """Send ``clients`` asynchronous requests at once, each with ``fields``, and wait for all answers."""
    body = json.dumps({"prompt": "hold", "max_tokens": 512, "ignore_eos": True, **fields}).encode()
    return await asyncio.gather(*(_client(url, body, timeout_s) for _ in range(clients)))


async def _client(url: str, body: bytes, timeout_s: float) -> Answer:
    started = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            kind, retry_after_s = await _exchange(url, body)
    except TimeoutError:
        kind, retry_after_s = TIMED_OUT, 0.0
    except (OSError, EOFError, ValueError):
        kind, retry_after_s = BROKEN, 0.0
    return Answer(kind, time.perf_counter() - started, retry_after_s)


async def _exchange(url: str, body: bytes) -> tuple[str, float]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        rest = f"Prefer: respond-async\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + rest).encode() + body)
        return _read(await reader.read())
    finally:
        writer.close()


def _read(answer: bytes) -> tuple[str, float]:
    """The status with the error's code, and the seconds in ``Retry-After``."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    error = json.loads(body).get("error") or {}
    kind = " ".join((first.split(" ")[1], *((error["code"],) if error else ())))
    return kind, float(headers.get("retry-after", 0))


def report(answers: Iterable[Answer]) -> Iterator[str]:
    """A line for each kind of answer: how many, after how long, and when they may come back."""
    kinds: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        kinds[answer.kind].append(answer)
    for kind, found in sorted(kinds.items()):
        p50, p99 = (percentile([each.took_s for each in found], share) for share in (0.5, 0.99))
        line = f"{len(found):5} {kind}: p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms"
        told = [each.retry_after_s for each in found if each.retry_after_s]
        yield line + (f"; Retry-After {min(told):g} to {max(told):g} s" if told else "")


if __name__ == "__main__":
    main()
