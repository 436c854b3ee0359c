"""What errors of Redis mean, and that each trouble is told once."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions
from redis._parsers import _HiredisParser

from tasks.store.board import Board
from tasks.store.troubles import Kind, Trouble, kind_of

pytestmark = pytest.mark.unit

#: What Valkey 9.1 and Redis 7 say.
REPLIES = {
    "LOADING Valkey is loading the dataset in memory": Kind.LOADING,
    "READONLY You can't write against a read only replica.": Kind.READ_ONLY,
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": Kind.NO_MASTER,
    "NOREPLICAS Not enough good replicas to write.": Kind.TOO_FEW_REPLICAS,
    "OOM command not allowed when used memory > 'maxmemory'.": Kind.FULL,
    "MISCONF Errors writing to the AOF file: No space left on device": Kind.NO_SPACE,
    "BUSY Valkey is busy running a script.": Kind.BUSY,
    "CLUSTERDOWN The cluster is down": Kind.CLUSTER,
    "TRYAGAIN Multiple keys request during rehashing of slot": Kind.CLUSTER,
    "UNBLOCKED client unblocked via CLIENT UNBLOCK": Kind.UNBLOCKED,
    "NOPERM User u has no permissions to run the 'evalsha' command": Kind.NO_PERMISSION,
    "ERR ACL failure in script: User u has no permissions to run the 'set' command": Kind.NO_PERMISSION,
    "ERR The user executing the script can't run this command or subcommand": Kind.NO_PERMISSION,
    "NOAUTH Authentication required.": Kind.WRONG_PASSWORD,
    "WRONGPASS invalid username-password pair or user is disabled.": Kind.WRONG_PASSWORD,
    "WRONGTYPE Operation against a key holding the wrong kind of value": Kind.WRONG_TYPE,
    "ERR unknown command 'FOO'": Kind.OTHER,
}


def error_of(reply: str) -> Exception:
    error: Exception = _HiredisParser.parse_error(reply)  # type: ignore[no-untyped-call]
    return error


@pytest.mark.parametrize("reply", REPLIES)
def test_each_reply_has_its_kind(reply: str) -> None:
    assert kind_of(error_of(reply)) is REPLIES[reply]
    in_pipeline = f"Command # 1 (SADD a b) of pipeline caused error: {reply}"
    if not getattr(error_of(reply), "status_code", None):
        assert kind_of(exceptions.ResponseError(in_pipeline)) is REPLIES[reply]


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("refused"),
        exceptions.TimeoutError(),
        OSError("broken"),
        ConnectionResetError(),
    ],
)
def test_a_lost_connection_is_no_reply(error: Exception) -> None:
    assert kind_of(error) is Kind.AWAY
    assert not kind_of(error).needs_person


def test_a_missing_permission_is_told_with_its_remedy() -> None:
    text = Trouble.of(error_of("NOPERM User u has no permissions to run the 'config|set' command")).text
    assert "ACL SETUSER <user> +config|set" in text
    assert "allchannels" in Trouble.of(error_of("NOPERM No permissions to access a channel")).text
    assert "allkeys" in Trouble.of(error_of("NOPERM No permissions to access a key")).text


@given(st.text())
def test_any_reply_has_a_kind_and_a_text(reply: str) -> None:
    trouble = Trouble.of(error_of(reply))
    assert trouble.kind in Kind
    assert trouble.text


def test_a_trouble_is_told_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    changes: list[str] = []
    board = Board(on_change=changes.append)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            board.note("a", error_of("READONLY x"))
        board.note("b", error_of("READONLY x"))
        board.note("a", error_of("OOM x"))
        assert board.kinds == {Kind.READ_ONLY, Kind.FULL}
        for who in ("a", "a", "b", "c"):
            board.over(who)
    assert [record.message.split(":")[0] for record in caplog.records] == ["a", "b", "a", "a", "b"]
    assert board.kinds == set()
    assert changes[-1] == ""


def test_a_foreign_type_is_told_with_the_keys_name() -> None:
    board = Board(lambda: ["inference.m is a string and should be a list"])
    assert "inference.m is a string" in board.note("a", error_of("WRONGTYPE x")).text

    def fail() -> list[str]:
        raise exceptions.ConnectionError("away")

    assert "away" in Board(fail).note("a", error_of("WRONGTYPE x")).text
