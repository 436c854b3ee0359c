"""The commands and variables that deploy/ names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.cli import main
from service.settings import ApiSettings
from service.supervisor.settings import LocalSettings
from tasks.contract.exit_status import HOPELESS
from tasks.settings import WorkerSettings

pytestmark = pytest.mark.unit

DEPLOY = Path(__file__).parents[2] / "deploy"
FIELDS = {name for cls in (ApiSettings, LocalSettings, WorkerSettings) for name in cls.model_fields}
VARIABLES = {f"INFERENCE_{name.upper()}" for name in FIELDS} | {"INFERENCE_MODELS_DIR"}


@pytest.mark.parametrize("unit", sorted(DEPLOY.glob("*.service")), ids=lambda path: path.name)
def test_units_run_commands_that_exist(unit: Path):
    (command,) = re.findall(r"^ExecStart=\S+/inference-server (\S+)$", unit.read_text(), re.M)
    assert command in main.list_commands(None)  # type: ignore[arg-type]


def test_a_worker_that_can_not_go_on_is_left_ended():
    unit = (DEPLOY / "inference-worker.service").read_text()
    assert f"RestartPreventExitStatus={HOPELESS}\n" in unit


def test_containers_run_commands_that_exist():
    text = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "Containerfile").read_text()
    commands = re.findall(r'(?:command: |CMD )\["([a-z-]+)"', text)
    known = {*main.list_commands(None), "valkey-server"}  # type: ignore[arg-type]
    assert {"serve", "api", "worker", "model"} <= set(commands) <= known


@pytest.mark.parametrize("name", ["compose.yaml", "Containerfile", "inference-server.env"])
def test_variables_are_settings(name: str):
    found = set(re.findall(r"\bINFERENCE_[A-Z_]+", (DEPLOY / name).read_text()))
    assert found
    assert found <= VARIABLES


COMPOSE = (DEPLOY / "compose.yaml").read_text()
SERVICES = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", COMPOSE.partition("\nservices:\n")[2], re.M))


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_confined(name: str):
    assert len(SERVICES) == 6
    assert "    <<: *confined\n" in SERVICES[name] or "    <<: *inference\n" in SERVICES[name]
    assert 'cap_drop: [ALL]\n  security_opt: ["no-new-privileges:true"]' in COMPOSE
    assert "x-inference: &inference\n  <<: *confined\n" in COMPOSE
    for ports in re.findall(r"ports: \[(.*)\]", SERVICES[name]):
        assert ports.startswith('"127.0.0.1:')


def test_containers_reach_valkey_with_a_password():
    assert '"--requirepass", "${REDIS_PASSWORD}"]' in SERVICES["valkey"]
    assert '"--maxmemory", "1gb", "--maxmemory-policy", "noeviction"' in SERVICES["valkey"]
    assert "REDIS_URL: redis://:${REDIS_PASSWORD:?" in COMPOSE


@pytest.mark.parametrize(
    ("unit", "needed"),
    [("inference-api", 2 * ApiSettings.model_fields["max_connections"].default), ("inference-worker", 4096)],
)
def test_units_have_descriptors_for_their_connections(unit: str, needed: int):
    [limit] = re.findall(r"^LimitNOFILE=(\d+)$", (DEPLOY / f"{unit}.service").read_text(), re.M)
    assert int(limit) >= needed
