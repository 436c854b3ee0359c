"""Clients that keep a cluster busy while faults are injected."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.chaos.clients import Client, Poller, Receipt, Streamer
from tests.chaos.cluster import Cluster

TOPICS = ("rivers", "mutexes", "bread", "the moon", "élan vital", "東京", "chess", "rain", "glass", "🐝 bees")


def chat(topic: str, max_tokens: int, **options: Any) -> dict[str, Any]:
    """A chat request for exactly ``max_tokens`` tokens, unless ``options`` say otherwise."""
    messages = [{"role": "user", "content": f"Tell me about {topic}."}]
    return {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True, **options}


def completion(topic: str, max_tokens: int, **options: Any) -> dict[str, Any]:
    """A text completion of the same length."""
    return {"prompt": f"A few words about {topic}:", "max_tokens": max_tokens, "ignore_eos": True, **options}


class Mix:
    """Makes random clients: streams and pollers, greedy or not, some with stop strings, some that go away.

    Args:
        cluster: the cluster that they ask.
        tokens: least and greatest length of an answer.
        leavers: share of clients that go away in the middle.
        pollers: share of clients that poll.
    """

    def __init__(
        self,
        cluster: Cluster,
        tokens: tuple[int, int] = (20, 100),
        *,
        leavers: float = 0,
        pollers: float = 0.2,
        seed: int = 1,
    ) -> None:
        self._cluster, self._tokens = cluster, tokens
        self._leavers, self._pollers = leavers, pollers
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def draw(self) -> Client:
        """The next client. Any thread may call this."""
        with self._lock:
            return self._draw()

    def _draw(self) -> Client:
        pick, urls = self._random, self._cluster.urls()
        topic, num_tokens = pick.choice(TOPICS), pick.randint(*self._tokens)
        if pick.random() < self._pollers:
            return Poller(urls, completion(topic, num_tokens, **self._options()), pick)
        leaves = pick.random() < self._leavers
        return Streamer(
            urls, chat(topic, num_tokens, **self._options()), pick, pick.randint(1, 20) if leaves else None
        )

    def _options(self) -> dict[str, Any]:
        return self._random.choice(
            (
                {"temperature": 0},
                {"temperature": 1.2, "seed": 3},
                {"stop": [". The ", "\n\n"]},
                {"ignore_eos": False},
            )
        )


def _ignore(receipt: Receipt) -> None:
    """Do nothing: the test checks the receipt later."""


@contextmanager
def busy(
    draw: Callable[[], Client], num: int, check: Callable[[Receipt], None] = _ignore
) -> Iterator[list[Receipt]]:
    """Keep ``num`` clients at work until the block ends; then each finishes its last request.

    During the block the list has the receipts that are complete so far; after it, it has all. ``check`` gets
    each receipt as soon as it is complete.
    """
    receipts: list[Receipt] = []
    enough = threading.Event()

    def go_on() -> None:
        while not enough.is_set():
            receipt = draw().run()
            check(receipt)
            receipts.append(receipt)

    with ThreadPoolExecutor(num) as pool:
        threads = [pool.submit(go_on) for _ in range(num)]
        try:
            yield receipts
        finally:
            enough.set()
        for thread in threads:
            thread.result()


@contextmanager
def at_once(clients: Sequence[Client]) -> Iterator[list[Future[Receipt]]]:
    """Run each client once, all at the same time; after the block they are done."""
    with ThreadPoolExecutor(len(clients)) as pool:
        yield [pool.submit(client.run) for client in clients]


def answers(futures: list[Future[Receipt]]) -> list[Receipt]:
    """What the clients of :func:`at_once` received."""
    return [future.result() for future in futures]
