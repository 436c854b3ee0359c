"""OpenAI's own client, reading a stream."""

from __future__ import annotations

from typing import Any

import openai

from tests.waiting import wait_until


def client(url: str) -> openai.OpenAI:
    """A client of the server at ``url`` that never tries again."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


class Reader:
    """Reads one streamed chat; ``pieces`` has the texts so far."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self._client, self._body = client(url), body
        self.pieces: list[str] = []

    def read(self) -> str:
        """The whole text, once the stream has come to its end."""
        for chunk in self._client.chat.completions.create(**self._body, stream=True):
            self.pieces.extend(choice.delta.content or "" for choice in chunk.choices)
        return "".join(self.pieces)

    def wait_text(self) -> None:
        """Wait for the first text; may be called from another thread."""
        wait_until(lambda: any(self.pieces), timeout=60)
