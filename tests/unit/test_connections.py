"""Which connection gives way when there are too many: real greenlets, any order of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gevent
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from service.server import connections
from service.server.connections import Connections

pytestmark = pytest.mark.unit


@dataclass
class Client:
    """One connection: whether it was let in, how often it waited in vain, what it does now."""

    ask: Event = field(default_factory=Event)
    answered: Event = field(default_factory=Event)
    was_let_in: bool | None = None
    is_waiting: bool = False
    is_over: bool = False

    def live(self, all_: Connections) -> None:
        with all_.opened() as self.was_let_in:
            while self.was_let_in:
                got_request = False
                with all_.waiting(60):
                    self.is_waiting = True
                    self.ask.wait()
                    got_request = True
                self.is_waiting = False
                if not got_request:
                    break
                self.answered.wait()
                self.ask.clear()
                self.answered.clear()
        self.is_over = True


@given(st.lists(st.tuples(st.sampled_from(["come", "ask", "answer"]), st.integers(0, 9)), max_size=40))
def test_a_connection_with_a_request_never_gives_way(steps: list[tuple[str, int]]) -> None:
    all_, limit = Connections(3), 3
    clients: list[Client] = []
    greenlets: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connections, "QUIET_S", 0.0)
        for step, number in steps:
            alive = [client for client in clients if not client.is_over]
            waiting = [client for client in alive if client.is_waiting]
            busy = [client for client in alive if not client.is_waiting]
            if step == "come":
                clients.append(Client())
                greenlets.append(gevent.spawn(clients[-1].live, all_))
            elif alive:
                chosen = alive[number % len(alive)]
                (chosen.ask if step == "ask" else chosen.answered).set()
            _settle()
            assert not any(client.is_over for client in busy)
            assert sum(not client.is_over for client in clients) <= limit
            if step == "come":
                is_full = len(alive) == limit
                assert clients[-1].was_let_in == (not is_full or bool(waiting))
                assert sum(client.is_over for client in waiting) == (is_full and bool(waiting))
    gevent.killall(greenlets)


def test_a_young_wait_goes_on() -> None:
    all_ = Connections(1)
    first, second = Client(), Client()
    greenlets = [gevent.spawn(first.live, all_)]
    _settle()
    greenlets.append(gevent.spawn(second.live, all_))
    _settle()
    assert (first.is_over, second.was_let_in) == (False, False)
    all_.end_waiting()
    _settle()
    assert first.is_over
    gevent.killall(greenlets)


def _settle() -> None:
    """Let every greenlet do what it can."""
    for _ in range(10):
        gevent.sleep(0)
