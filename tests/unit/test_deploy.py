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
