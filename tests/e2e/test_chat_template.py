"""Chat templates: a model without one, one that is named, and one that takes long."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.contract.exit_status import HOPELESS
from tests.e2e.serving import Served
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

SHAPE = ("--workers", "1", "--slots", "4", "--threads", "1", "--n-ctx", "512")
KEY = b"tokenizer.chat_template"
#: Takes all the time that a template may take, if the user says so.
SLOW = (
    "{% if 'slow' in messages[0].content %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}"
)


@pytest.fixture(scope="module")
def bare_model(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model without its chat template: its key has another name."""
    path = tmp_path_factory.mktemp("bare") / "bare.gguf"
    path.write_bytes(model_path.read_bytes().replace(KEY, b"x" * len(KEY), 1))
    return path


def chat(served: Served, content: str, **headers: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def test_a_model_without_a_template_names_the_option(
    bare_model: Path, start_service: Callable[..., Served]
) -> None:
    served = start_service(*SHAPE, "--model", str(bare_model)).wait_ready()
    answer = chat(served, "Hi")
    assert answer.status_code == 400
    assert "--chat-template" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages"
    completion = httpx.post(
        f"{served.url}/v1/completions", json={"prompt": "Hi", "max_tokens": 2}, timeout=60
    )
    assert completion.status_code == 200


def test_a_named_template_serves_a_model_without_one(
    bare_model: Path, start_service: Callable[..., Served]
) -> None:
    served = start_service(*SHAPE, "--model", str(bare_model), "--chat-template", "chatml").wait_ready()
    answer = chat(served, "Hi").raise_for_status().json()
    # <|im_start|> user \n Hi <|im_end|> \n <|im_start|> ass istant \n
    assert answer["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("no-such", "no template's name; the names are chatml, llama-3, mistral, mixtral"),
        ("{{ messages[7].content }}", "it can't render a small chat"),
        ("Hi there", "it leaves out what the user of a small chat says"),
        ("{% for", "it can't render a small chat"),
    ],
)
def test_a_template_that_cannot_serve_ends_the_start(
    template: str, reason: str, tmp_path: Path, start_service: Callable[..., Served]
) -> None:
    (tmp_path / "template").write_text(template)
    named = template if template == "no-such" else str(tmp_path / "template")
    served = start_service(*SHAPE, "--chat-template", named)
    assert served.process.wait(timeout=60) == HOPELESS
    *_, last = served.output.read_text().splitlines()
    assert f"--chat-template {named}: " in last
    assert reason in last


def test_a_prompt_that_is_being_prepared_keeps_a_slot_busy_and_can_be_cancelled(
    tmp_path: Path, start_service: Callable[..., Served]
) -> None:
    (tmp_path / "template").write_text(SLOW)
    served = start_service(*SHAPE, "--chat-template", str(tmp_path / "template")).wait_ready()

    def begin() -> str:
        return str(chat(served, "slow", Prefer="respond-async").json()["id"])

    def busy() -> int:
        status: dict[str, Any] = httpx.get(f"{served.url}/v1/status", timeout=30).json()
        return sum(int(child["busy"]) for child in status["children"])

    def told() -> list[str]:
        lines = (served.state / "logs" / "worker.log").read_text().splitlines()
        return [line for line in lines if "attempt [" in line]

    # They share one processor, so together they take longer than a child's heartbeat.
    wait_until(lambda: [begin() for _ in range(4)] and busy() > 0, timeout=60, interval=1)
    wait_until(lambda: busy() == 0, timeout=60)
    before = len(told())
    cancelled = begin()
    wait_until(lambda: _state(served, cancelled) == "running")
    httpx.delete(f"{served.url}/v1/requests/{cancelled}", timeout=30).raise_for_status()
    [line] = wait_until(lambda: told()[before:], timeout=30)
    assert re.search(rf"id={cancelled} .* outcome=dropped", line)


def _state(served: Served, request_id: str) -> str:
    return str(httpx.get(f"{served.url}/v1/requests/{request_id}", timeout=30).json()["status"])
