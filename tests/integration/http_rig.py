"""A real API process over a real Valkey, and a worker that does what the prompt says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.messages import (
    End,
    ErrorCode,
    Failure,
    FinishReason,
    State,
    Timings,
    Usage,
    queue_name,
)
from tasks.contract.redis_names import PRIORITY_LISTS
from tasks.contract.status import Child
from tasks.store.registry import HEARTBEAT_S, Registry, ServedModel
from tasks.store.requests import RequestStore, script_source
from tasks.worker.attempt import Attempt
from tasks.worker.attempt_store import Append, AttemptStore
from tests.ports import free_port
from tests.waiting import wait_until

MODEL = "scripted"
N_CTX = 4096
CHILD = Child("w/1", "w", 1, MODEL, N_CTX, slots=16, fingerprint="fp_scripted")
ROOT = Path(__file__).resolve().parents[2]


class Api:
    """One gunicorn with one API process.

    ``max_files``: its soft and its hard limit of open files.
    """

    def __init__(
        self,
        redis_url: str,
        log: Path | None = None,
        *,
        max_files: tuple[int, int] | None = None,
        **settings: object,
    ) -> None:
        self.port = free_port()
        env = {**os.environ, "REDIS_URL": redis_url, "INFERENCE_PORT": str(self.port)}
        env.update({f"INFERENCE_{name.upper()}": str(value) for name, value in settings.items()})
        command = [sys.executable, "-m", "gunicorn", "-c", "python:service.server.gunicorn_config"]
        limited = [] if max_files is None else ["prlimit", "--nofile={}:{}".format(*max_files)]
        with log.open("wb") if log else nullcontext() as output:
            self.process = subprocess.Popen([*limited, *command], env=env, cwd=ROOT, stderr=output)
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=30)
        self._threads = ThreadPoolExecutor(16)

    def wait_ready(self) -> None:
        wait_until(lambda: self.status("/readyz") == 200, timeout=30)

    def status(self, path: str) -> int:
        """The status of a GET, or 0 while nothing listens."""
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return 0

    def complete(self, prompt: str, prefer: str = "", **fields: Any) -> httpx.Response:
        headers = {"Prefer": prefer} if prefer else {}
        return self.http.post("/v1/completions", json={"prompt": prompt, **fields}, headers=headers)

    def submit(self, prompt: str, prefer: str = "respond-async", **fields: Any) -> str:
        """Start an asynchronous request, and return its id."""
        answer = self.complete(prompt, prefer, **fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def later(self, method: Any, *args: Any, **options: Any) -> Any:
        """A future of a call in a thread."""
        return self._threads.submit(method, *args, **options)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        self.http.close()
        self.process.send_signal(sig)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()


class ScriptedWorker:
    """Claims every waiting request, one after the other, and does what the prompt's first word says.

    ``hold``: deliver ``one`` and leave the request running; ``silent``: leave it running and deliver nothing;
    ``fail CODE``: end it with that error; any other word: deliver each word of the prompt, then end it.
    """

    def __init__(self, redis_url: str) -> None:
        self._redis = Redis.from_url(redis_url)
        self._registry, self.store = Registry(self._redis), RequestStore(self._redis)
        self._attempts = AttemptStore(self._redis)
        self._take = self._redis.register_script(script_source("take"))
        self.held: dict[str, tuple[Attempt, int]] = {}
        self.is_paused, self.trouble = False, ""
        self._is_idle, self._stopped = threading.Event(), threading.Event()
        self._announced = float("-inf")
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.introduce()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Claim nothing inside the block, so that requests wait."""
        self._is_idle.clear()
        self.is_paused = True
        assert self._is_idle.wait(10)
        try:
            yield
        finally:
            self.is_paused = False

    def introduce(self) -> None:
        """Make the model and the child known, as on an empty store."""
        self._registry.add_model(ServedModel(MODEL, N_CTX, 1))
        self._announced = float("-inf")

    @property
    def num_waiting(self) -> int:
        names = [queue_name(MODEL) + suffix for suffix in PRIORITY_LISTS]
        return sum(self._redis.llen(name) for name in names)

    def say(self, request_id: str, text: str) -> bool:
        claim, seq = self.held[request_id]
        self.held[request_id] = claim, seq + 1
        return self._append(Append(request_id, claim.number, seq + 1, text, (seq,)))

    def finish(self, request_id: str, num_tokens: int = 1, end: End | None = None) -> bool:
        """End a request as ``end`` says; default: an ordinary end after ``num_tokens`` tokens."""
        claim, seq = self.held.pop(request_id)
        end = end or End(
            State.SUCCEEDED,
            FinishReason.STOP,
            Usage(5, num_tokens),
            Timings(prompt_n=5, predicted_n=num_tokens, queue_ms=claim.queue_ms, ttft_ms=2.0),
        )
        gaps = (1.0,) * (num_tokens - 1)
        item = Append(request_id, claim.number, seq + 1, prompt_tokens=5, end=end, itl_ms=gaps)
        return self._append(item)

    def _append(self, item: Append) -> bool:
        return self._attempts.append([item])[0]

    def _run(self) -> None:
        names = [queue_name(MODEL) + suffix for suffix in PRIORITY_LISTS]
        while not self._stopped.is_set():
            self._announce()
            if self.is_paused:
                self._is_idle.set()
                time.sleep(0.01)
                continue
            # Lease the messages as a worker does, so that the janitor doesn't take them for lost.
            taken = cast(
                "bytes | None", self._take(keys=names, args=[redis_names.LEASES, redis_names.UNACKED])
            )
            if taken is None:
                time.sleep(0.005)
            else:
                self._run_one(str(json.loads(taken)["headers"]["id"]))

    def _announce(self) -> None:
        if time.monotonic() - self._announced > HEARTBEAT_S:
            self._announced = time.monotonic()
            self._registry.announce(replace(CHILD, busy=len(self.held), trouble=self.trouble))

    def _run_one(self, request_id: str) -> None:
        claim = self._attempts.claim(request_id, "w/1", 3)
        if claim is None:
            return
        request = claim.request
        prompt = request.prompt if request.messages is None else request.messages[-1].content
        first, *words = (prompt or "").split(" ")
        if first == "fail":
            self._fail(claim, words[0])
            return
        self.held[request_id] = claim, 0
        if first == "hold":
            self.say(request_id, "one")
        elif first != "silent":
            self._echo(request_id, [first, *words])

    def _echo(self, request_id: str, words: list[str]) -> None:
        for word in words:
            self.say(request_id, word)
        self.finish(request_id, len(words))

    def _fail(self, claim: Attempt, code: str) -> None:
        end = End(State.FAILED, error=Failure(ErrorCode(code), "as asked", "prompt"), usage=Usage(5, 0))
        self._append(Append(claim.request.id, claim.number, 1, end=end))
