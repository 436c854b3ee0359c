"""A worker of one child, what a publisher and an operator do with it, and what nobody can read."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
from redis import Redis

from tasks.contract import redis_names
from tasks.contract.celery_message import celery_message
from tasks.contract.messages import GenerateRequest, Sampling, State, queue_name
from tasks.queue.submit import RequestQueue
from tasks.store.janitor import Janitor
from tasks.store.requests import RequestStore
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SLOTS = 2
#: The settings of every such worker.
SETTINGS = {
    "INFERENCE_SLOTS": str(SLOTS),
    "INFERENCE_WORKERS": "1",
    "INFERENCE_THREADS": "1",
    "INFERENCE_STEP_SHAPING": "false",
    "INFERENCE_DRAIN_TIMEOUT": "0.1",
}


@dataclass
class Host:
    """A worker of one child with two slots, and what a publisher and an operator do with it."""

    redis: Redis
    env: dict[str, str]
    model: str
    log: Path
    app: str = "tasks"
    process: subprocess.Popen[bytes] | None = None
    num_requests: int = 0

    @property
    def store(self) -> RequestStore:
        return RequestStore(self.redis)

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            self.app,
            "worker",
            "--without-mingle",
            "--loglevel=INFO",
        ]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, env=self.env, cwd=ROOT, stdout=log, stderr=log)
        wait_until(lambda: "ready." in self.log.read_text() or not self.is_running, timeout=20)
        assert self.is_running, self.log.read_text()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """SIGTERM; it must end in order."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(60) == 0, self.log.read_text()

    def control(self, *command: str) -> dict[str, Any]:
        """What the worker replies to ``celery control``."""
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", self.app, "control", "--json", "--timeout", "1", *command],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        [replies] = json.loads(done.stdout)  # of one worker
        [reply] = replies.values()
        return dict(reply)

    def submit(self, max_tokens: int, headers: Callable[[Any], None] = lambda _: None) -> str:
        self.num_requests += 1
        request = GenerateRequest(
            id=f"request-{self.num_requests}",
            model=self.model,
            prompt="1, 2, 3,",
            max_tokens=max_tokens,
            sampling=Sampling(temperature=0),
            ignore_eos=True,
            stream=True,
        )
        RequestQueue(self.store, 100, headers).submit(request, "", 300)
        return request.id

    def state(self, request_id: str) -> State:
        record = self.store.fetch(request_id)
        assert record is not None
        return record.state

    def start_long(self, num: int = 1, headers: Callable[[Any], None] = lambda _: None) -> list[str]:
        """Requests that generate, and would for a minute."""
        found = [self.submit(400, headers) for _ in range(num)]
        wait_until(lambda: all(self._has_begun(each) for each in found), timeout=20)
        return found

    def _has_begun(self, request_id: str) -> bool:
        record = self.store.fetch(request_id)
        return record is not None and record.seq > 0

    def children(self) -> set[int]:
        """The process ids of its children."""
        assert self.process is not None
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    def tidy_up(self) -> None:
        """Cancel what is left, and see that the worker is idle and lives."""
        for each in cast("list[bytes]", self.redis.zrange(redis_names.ACTIVE, 0, -1)):
            self.store.cancel(each.decode())
        self.wait_idle()
        assert self.is_running, self.log.read_text()

    def is_idle(self) -> bool:
        names = redis_names.UNACKED, redis_names.LEASES, redis_names.RUNNING, redis_names.ACTIVE
        return not self.redis.exists(*names, queue_name(self.model))

    def wait_idle(self) -> None:
        """Wait until no message is left, nor anything that the janitor would queue again."""
        janitor = Janitor(self.redis, grace_s=0.0)
        wait_until(lambda: janitor.tidy() == [] and self.is_idle(), timeout=20)


def message_of(host: Host, **changes: Any) -> dict[str, Any]:
    request = GenerateRequest(id="garbage", model=host.model, prompt="x")
    return {**json.loads(celery_message(request, "tag", {})), **changes}


def body(*parts: Any) -> str:
    return base64.b64encode(json.dumps(parts).encode()).decode()


#: What may be in a queue, or in its messages, and can't be read.
GARBAGE: dict[str, Callable[[Host], Any]] = {
    "no JSON": lambda _: b"no JSON",
    "no UTF-8": lambda host: json.dumps(message_of(host, note="NOTE")).encode().replace(b"NOTE", b"\xff\xfe"),
    "a list": lambda _: [1],
    "no properties": lambda host: message_of(host, properties=None),
    "no delivery": lambda host: message_of(host, properties={"delivery_tag": "t", "delivery_info": None}),
    "a number for a tag": lambda host: message_of(host, properties={"delivery_tag": 1}),
    "no headers": lambda host: message_of(host, headers=None),
    "no id": lambda host: message_of(host, headers={"task": "tasks.generate"}),
    "an unknown task": lambda host: message_of(host, headers={"task": "other", "id": "x"}),
    "headers that are a list": lambda host: message_of(host, headers=[1]),
    "no body": lambda host: message_of(host, body=None),
    "a body that is no base64": lambda host: message_of(host, body="§"),
    "a body that is no JSON": lambda host: message_of(host, body=base64.b64encode(b"{").decode()),
    "a pickled body": lambda host: message_of(host, **{"content-type": "application/x-python-serialize"}),
    "no arguments": lambda host: message_of(host, body=body([], {}, {})),
    "an id that is a number": lambda host: message_of(host, body=body([1], {}, {})),
    "an ETA that is none": lambda host: message_of(
        host, headers={"task": "tasks.generate", "id": "x", "eta": "never"}
    ),
}
