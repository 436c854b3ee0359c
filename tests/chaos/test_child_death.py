"""A worker's child dies: its requests go on in another child, and no other request is disturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tasks.contract.exit_status import HOPELESS
from tests.chaos.clients import Poller, Streamer
from tests.chaos.cluster import Cluster, Running
from tests.chaos.forms import forms
from tests.chaos.load import Mix, answers, at_once, busy, chat, completion
from tests.chaos.timing import resumed_after, summary
from tests.chaos.verdict import Judge, settled
from tests.waiting import wait_until

Tell = Callable[[str], None]


@forms("num_kills", 2, "CHAOS_KILLS", 100)
def test_streams_go_on_when_children_are_killed(
    num_kills: int, cluster: Cluster, judge: Judge, tell: Tell
) -> None:
    pick, waits, num_victims = random.Random(5), [], 0
    with busy(Mix(cluster, tokens=(40, 120)).draw, 8) as receipts:
        for _ in range(num_kills):
            [(child, victims)] = wait_until(lambda: _choose(cluster, pick), timeout=60)
            since = time.monotonic()
            os.kill(_pid(child), signal.SIGKILL)
            waits += resumed_after(cluster, victims, since)
            num_victims += len(victims)
            wait_until(cluster.is_ready, timeout=30)
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    attempts = [cluster.store.fetch(receipt.id).attempt for receipt in receipts]  # type: ignore[union-attr]
    assert max(attempts) > 1
    tell(f"{num_kills} kills, {len(receipts)} requests complete; kill to next claim: {summary(waits)}")


@forms("num_hangs", 1, "CHAOS_HANGS", 10)
def test_the_requests_of_a_hung_child_go_on_elsewhere(
    num_hangs: int, cluster: Cluster, judge: Judge, tell: Tell
) -> None:
    pick, waits = random.Random(6), []
    before = _num_hung(cluster)
    with busy(Mix(cluster, tokens=(40, 120)).draw, 8) as receipts:
        for _ in range(num_hangs):
            [(child, victims)] = wait_until(lambda: _choose(cluster, pick), timeout=60)
            since = time.monotonic()
            os.kill(_pid(child), signal.SIGSTOP)
            waits += resumed_after(cluster, victims, since)
            wait_until(cluster.is_ready, timeout=60)
    for receipt in receipts:
        judge.receipt(receipt)
    settled(cluster, judge)
    assert _num_hung(cluster) - before == num_hangs
    tell(f"{num_hangs} hangs; lease {cluster.sizes.lease} s; stop to next claim: {summary(waits)}")


@pytest.mark.e2e
def test_an_idle_child_that_is_stopped_lives_until_it_gets_work(cluster: Cluster, judge: Judge) -> None:
    """The stopped child holds up no request for ever, but nobody kills it while it has nothing to do."""
    children = [_pid(child) for worker in cluster.workers.values() for child in cluster.children(worker)]
    before, pick = _num_hung(cluster), random.Random(7)
    for child in children[:-1]:
        os.kill(child, signal.SIGSTOP)
    with at_once([Streamer(cluster.urls(), chat("rain", 20), pick) for _ in range(12)]) as futures:
        pass
    for receipt in answers(futures):
        judge.receipt(receipt)
    killed = [child for child in children if not psutil.pid_exists(child)]
    assert _num_hung(cluster) - before == len(killed)
    for child in set(children) - set(killed):
        os.kill(child, signal.SIGCONT)
    settled(cluster, judge)


def _num_hung(cluster: Cluster) -> int:
    """How many children were killed because they hung, as the workers' logs say."""
    return sum(worker.log.read_text().count("has made no progress") for worker in cluster.workers.values())


def _choose(cluster: Cluster, pick: random.Random) -> list[tuple[str, list[Running]]]:
    """A child that has requests, none of them in its last attempt."""
    children = [child for worker in cluster.workers.values() for child in cluster.children(worker)]
    pick.shuffle(children)
    for child in children:
        victims = cluster.running_on([child])
        if victims and all(victim.attempt < cluster.sizes.max_attempts for victim in victims):
            return [(child, victims)]
    return []


def _pid(child: str) -> int:
    return int(child.rpartition("/")[2])


@forms("num_siblings", 3, "CHAOS_SIBLINGS", 8)
def test_a_request_that_kills_its_child_is_given_up(
    num_siblings: int, cluster: Cluster, judge: Judge
) -> None:
    pick, urls = random.Random(6), cluster.urls()
    poison = Poller(urls, completion("poison", 400), pick)
    siblings = [Streamer(urls, chat("health", 60), pick) for _ in range(num_siblings)]
    with at_once([poison, *siblings]) as futures:
        wait_until(lambda: poison.receipt.id)
        for attempt in range(1, cluster.sizes.max_attempts + 1):
            [found] = wait_until(lambda: _at(cluster, poison.receipt.id, attempt), timeout=30)  # noqa: B023
            os.kill(_pid(found.child), signal.SIGKILL)
    given_up, *answered = answers(futures)
    assert given_up.error == "attempts_exhausted"
    for receipt in answered:
        judge.receipt(receipt)
    settled(cluster, judge)


def _at(cluster: Cluster, request_id: str, attempt: int) -> list[Running]:
    """The request, once its ``attempt`` runs; until then nothing."""
    return [each for each in cluster.running() if each.id == request_id and each.attempt == attempt]


@pytest.mark.e2e
def test_a_model_file_cut_short_ends_its_worker_and_blames_no_request(
    cluster: Cluster, judge: Judge, tmp_path: Path
) -> None:
    model = tmp_path / cluster.model.name
    shutil.copy(cluster.model, model)
    url = cluster.url_by("127.0.0.1", cluster.valkey_port)
    victim = cluster.make_worker("cut", url, "--model", str(model))
    pick = random.Random(9)
    try:
        victim.start()
        wait_until(lambda: cluster.is_worker_ready(victim), timeout=60)
        clients = [Streamer(cluster.urls(), chat("rain", 150), pick) for _ in range(20)]
        with at_once(clients) as futures:
            wait_until(lambda: cluster.running_on(cluster.children(victim)), timeout=60)
            os.truncate(model, 1_000_000)
            assert victim.wait() == HOPELESS, victim.tail()
    finally:
        victim.kill()
    assert "has changed since the worker loaded it" in victim.log.read_text()
    for receipt in answers(futures):
        judge.receipt(receipt)
        assert cluster.store.deaths(receipt.id) == 0
    settled(cluster, judge)
