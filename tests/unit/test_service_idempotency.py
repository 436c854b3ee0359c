"""Which values are an Idempotency-Key, and which requests count as the same."""

from __future__ import annotations

from typing import Any

import pytest

from service.errors import ApiError
from service.intake.idempotency import MAX_CHARS, parse
from tasks.queue.submit import Key

pytestmark = pytest.mark.unit

PATH = "/v1/completions"


def key(header: str = "k", *, who: str | None = None, path: str = PATH, **body: Any) -> Key:
    found = parse(header, who, path, body)
    assert found is not None
    return found


def test_no_header_is_no_key() -> None:
    assert parse(None, None, PATH, {}) is None


def test_quotes_are_the_drafts_and_may_be_left_out() -> None:
    assert key('"8e03978e-40d5"') == key("8e03978e-40d5") == key("  8e03978e-40d5 ")
    assert key(r'"a\"b"') == key('a"b')
    assert key('"a b"') != key('"ab"')


@pytest.mark.parametrize(
    "header", ["", " ", '""', "a b", "ü", "a\x01", '"a', 'a"b"c d', "x" * (MAX_CHARS + 1), '"\x7f"']
)
def test_what_is_no_key_is_refused(header: str) -> None:
    if header == '"a':  # a plain key may have a quote in it
        assert key(header)
        return
    with pytest.raises(ApiError) as refused:
        key(header)
    assert (refused.value.status, refused.value.param) == (400, "Idempotency-Key")


def test_longest_key() -> None:
    assert key("x" * MAX_CHARS) != key("x" * (MAX_CHARS - 1))


def test_keys_are_a_clients_own() -> None:
    assert key(who="Bearer a").digest != key(who="Bearer b").digest
    assert key(who="Bearer a").digest != key().digest


def test_same_body_has_the_same_fingerprint() -> None:
    assert key(prompt="x", seed=1).fingerprint == key(seed=1, prompt="x").fingerprint
    assert key(prompt="x").fingerprint != key(prompt="y").fingerprint
    assert key(prompt="x").fingerprint != key(prompt="x", path="/v1/chat/completions").fingerprint
    assert key(prompt="x").digest == key(prompt="y").digest


def test_nothing_of_the_key_can_be_read_in_redis() -> None:
    assert "secret" not in str(key("secret"))
