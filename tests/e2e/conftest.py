"""The real service for end-to-end tests: one shared by the session, and others on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from service.weights import model_files
from tests.e2e.serving import Served


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file."""
    path = model_files.default_model()
    assert path.is_file(), "run `make model`, or `inference-server model fetch`"
    return path


@pytest.fixture(scope="session")
def service(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service for tests that leave it as they found it."""
    served = Served(tmp_path_factory.mktemp("service"), INFERENCE_STEP_SHAPING="true").wait_ready()
    yield served
    assert served.end() == 0, served.output.read_text()


@pytest.fixture
def start_service(model_path: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts services for one test: ``start_service(*options, name="a", port=None, variables={})``."""
    started: list[Served] = []

    def start(
        *options: str,
        name: str = "service",
        port: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Served:
        started.append(Served(tmp_path / name, *options, port=port, **(variables or {})))
        return started[-1]

    yield start
    for served in started:
        served.process.kill() if served.process.poll() is None else None
        served.process.wait()
