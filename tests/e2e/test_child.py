"""A whole worker child on a tiny model, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tasks.contract.messages import ErrorCode, GenerateRequest, Sampling, State
from tasks.engine.costs.shared_note import SharedNote
from tasks.engine.costs.threads import CorePool
from tasks.engine.llama.model import Model
from tasks.queue.submit import RequestQueue
from tasks.settings import WorkerSettings
from tasks.store.requests import RequestStore
from tasks.telemetry.metric_names import WORKER_LAYOUT
from tasks.telemetry.tally import SharedTallies
from tasks.worker.child import HandedBackError, Share, WorkerChild
from tests.tiny_models import attends

pytestmark = pytest.mark.e2e


class Rig:
    """A child, and what its clients see of it."""

    def __init__(self, redis: Redis, settings: WorkerSettings, model: Model) -> None:
        self.store, self._name = RequestStore(redis), settings.served_name or ""
        tally = SharedTallies(WORKER_LAYOUT).row(0)
        share = Share("w", 0, 2, CorePool(1, 1).member(0), tally, SharedNote())
        self.child = WorkerChild(settings, model, share)
        self.child.start()

    def submit(self, request_id: str, **fields: Any) -> None:
        given = {"prompt": "Hi", "max_tokens": 4, "sampling": Sampling(temperature=0), **fields}
        RequestQueue(self.store, 64).submit(GenerateRequest(request_id, self._name, **given), "", 60)

    def state(self, request_id: str) -> State:
        record = self.store.fetch(request_id)
        assert record is not None
        return record.state

    def during_tokenizing(self, action: Any) -> None:
        """Have something happen while a prompt is being tokenized."""
        build = self.child._prompts.build

        def slow(request: GenerateRequest, check: Any) -> Any:
            action(request)
            return build(request, check)

        self.child._prompts.build = slow  # type: ignore[assignment, method-assign]

    @property
    def prefilled(self) -> float:
        return self.child._work.counts["prefilled"]


@pytest.fixture
def rig(redis: Redis, valkey_url: str, tmp_path: Path) -> Iterator[Rig]:
    path = attends(tmp_path / "tiny.gguf")
    settings = WorkerSettings(
        redis_url=valkey_url, model=path, workers=1, threads=1, slots=2, n_ctx=256, step_shaping=False
    )
    rig = Rig(redis, settings, Model(path))
    yield rig
    rig.child.close()


def test_a_request_is_answered(rig: Rig) -> None:
    rig.submit("r", ignore_eos=True)
    rig.child.run("r")
    assert rig.state("r") is State.SUCCEEDED
    assert rig.prefilled > 0


def test_a_request_that_is_cancelled_while_it_is_tokenized_is_never_computed(rig: Rig) -> None:
    def cancel(request: GenerateRequest) -> None:
        rig.store.cancel(request.id)
        [attempt] = rig.child._deliverer._attempts.values()
        assert attempt.over.wait(10)

    rig.during_tokenizing(cancel)
    rig.submit("r")
    rig.child.run("r")
    assert rig.state("r") is State.CANCELLED
    assert rig.prefilled == 0


def test_a_request_that_is_tokenized_while_its_child_leaves_is_handed_back(rig: Rig) -> None:
    rig.during_tokenizing(lambda _: rig.child.hand_back())
    rig.submit("r")
    with ThreadPoolExecutor(1) as slots, pytest.raises(HandedBackError):
        slots.submit(rig.child.run, "r").result(20)
    assert rig.state("r") is State.RUNNING


def test_a_request_that_can_not_be_tokenized_ends_with_an_error(rig: Rig) -> None:
    def fail(_: GenerateRequest) -> None:
        raise RuntimeError("as asked")

    rig.during_tokenizing(fail)
    rig.submit("r")
    rig.child.run("r")
    assert rig.state("r") is State.FAILED
    [event] = rig.store.read_log("r")
    assert event.end is not None
    assert event.end.error is not None
    assert event.end.error.code is ErrorCode.INTERNAL
