"""Open-loop load for Locust: requests arrive as a Poisson process, however fast the server is.

Times count from the scheduled start. Requests that find the queue full have a separate row, ``refused``.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser

import gevent
from gevent.pool import Group
from locust import User, constant, events, task

from loadtest.arrivals import arrive, chat_bodies
from loadtest.locust_rows import fire, fire_sample
from service.client.api_client import ClientError, served_model


@events.init_command_line_parser.add_listener
def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--n-predict", type=int, default=128, help="Tokens of each answer.")
    parser.add_argument("--rate", type=float, default=1.0, help="Arrivals per second of each user.")


class Arrivals(User):  # type: ignore[misc]
    """A source of requests; several sources act like one source with the sum of their rates."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Ask the server for its model, and start the clock."""
        self._url = str(self.host).removesuffix("/")
        options = self.environment.parsed_options
        self._bodies = chat_bodies(served_model(self._url), options.n_predict)
        self._rate, self._requests, self._due_s = options.rate, Group(), time.perf_counter()

    @task
    def next_one(self) -> None:
        """Start the next request when it is due, without waiting for the one before."""
        self._due_s += random.expovariate(self._rate)
        gevent.sleep(max(0.0, self._due_s - time.perf_counter()))
        self._requests.spawn(self._one, self._due_s)

    def on_stop(self) -> None:
        """Let the requests that have begun end, as far as ``--stop-timeout`` allows."""
        self._requests.join()

    def _one(self, due_s: float) -> None:
        arrival = arrive(self._url, next(self._bodies), due_s)
        if arrival.sample is not None:
            fire_sample(self.environment, arrival.sample, due_s)
        elif arrival.is_refused:
            fire(self.environment, "refused", arrival.total_s)
        else:
            fire(self.environment, "e2e", arrival.total_s, exception=ClientError(arrival.error))
