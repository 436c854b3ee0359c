"""Closed-loop load for Locust: each user streams one answer after another.

Time to first token, gaps between tokens and whole requests have separate rows. The project's own client
reads the stream, because Locust's ``iter_lines`` passes lines on only when 1,024 bytes have come, which
would make the first token late.
"""

from __future__ import annotations

from argparse import ArgumentParser

from locust import User, constant, events, task

from loadtest.locust_rows import fire, fire_sample
from service.client.api_client import ClientError, chat_body, measure, served_model
from service.client.load_run import SYSTEM_PROMPT, prompts

_PROMPTS = prompts()


@events.init_command_line_parser.add_listener
def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--n-predict", type=int, default=128, help="Tokens of each answer.")


class ChatUser(User):  # type: ignore[misc]
    """Asks, reads the answer to its end, and asks again."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Ask the server for its model."""
        self._url = str(self.host).removesuffix("/")
        self._model = served_model(self._url)

    @task
    def chat(self) -> None:
        """Stream one answer, greedy and past the end of sequence, so that all have the same length."""
        body = chat_body(
            self._model,
            next(_PROMPTS),
            SYSTEM_PROMPT,
            self.environment.parsed_options.n_predict,
            temperature=0,
            ignore_eos=True,
        )
        try:
            sample = measure(self._url, body)
            fire_sample(self.environment, sample, sample.started)
        except ClientError as error:
            fire(self.environment, "e2e", 0.0, exception=error)
