"""Who may use an API, as its settings say."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.cli import main
from service.server import capacity
from service.settings import ApiSettings
from tasks.telemetry.printable import printable, printable_lines

pytestmark = pytest.mark.unit

OWN = {"localhost", "127.0.0.1", "[::1]"}


@pytest.mark.parametrize("keys", ["", " ", ",", " , ,"])
def test_keys_without_a_key_are_refused(keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERENCE_API_KEYS", keys)
    with pytest.raises(ValidationError, match="unset INFERENCE_API_KEYS"):
        ApiSettings()
    for command in ("api", "serve"):
        refused = CliRunner().invoke(main, [command])
        assert refused.exit_code == 1
        assert refused.output.startswith("Error: --api-keys: has no key; to serve without keys, leave it out")


@pytest.mark.parametrize(
    ("given_", "hosts"),
    [
        ({}, OWN),
        ({"host": "localhost"}, OWN),
        ({"host": "127.0.0.2"}, OWN | {"127.0.0.2"}),
        ({"host": "::1"}, OWN),
        ({"allowed_hosts": "Box.local, [fd00::1]"}, OWN | {"box.local", "[fd00::1]"}),
        ({"allowed_hosts": "*"}, set()),
        ({"host": "0.0.0.0"}, set()),
        ({"host": "::"}, set()),
        ({"host": "10.1.2.3", "allowed_hosts": "a"}, set()),
        ({"api_keys": "k"}, set()),
    ],
)
def test_hosts(given_: dict[str, Any], hosts: set[str]) -> None:
    assert ApiSettings(**given_).hosts == hosts


@pytest.mark.parametrize(
    ("given_", "is_exposed"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": ""}, True),
        ({"host": "box.local"}, True),
        ({"host": "0.0.0.0", "api_keys": "k"}, False),
    ],
)
def test_exposure(given_: dict[str, Any], is_exposed: bool) -> None:
    assert (ApiSettings(**given_).exposure is not None) == is_exposed


def test_connections_leave_room_for_other_files() -> None:
    assert capacity.connections(4096, 20_000) == 4096
    assert capacity.connections(4096, 1024) == 1024 - capacity.RESERVE - capacity.SPARE
    assert capacity.connections(1, 130) == 1
    with pytest.raises(capacity.TooFewFilesError, match="ulimit"):
        capacity.connections(4096, 140)


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_logged_is_printable(text: str) -> None:
    shown = printable(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029\u202e" for c in shown)
    assert shown.encode().decode() == shown
    lines = printable_lines(text).split("\n")
    assert all(line.startswith("  ") for line in lines[1:])
    assert len(lines) == text.count("\n") + 1
