"""One cluster for the tests that repair what they break; it is whole again before each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.weights import model_files
from tasks.engine.llama.model import Model
from tests.chaos.cluster import Cluster, Sizes
from tests.chaos.cluster import cluster as running_cluster
from tests.chaos.forms import number
from tests.chaos.verdict import Judge

_told: list[str] = []


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file."""
    path = model_files.default_model()
    assert path.is_file(), "run `make model`, or `inference-server model fetch`"
    return path


@pytest.fixture(scope="session")
def vocabulary(model_path: Path) -> Model:
    """The model without its weights."""
    return Model(model_path, vocab_only=True)


@pytest.fixture(scope="session")
def shared_cluster(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Use :func:`cluster` instead."""
    sizes = Sizes(lease=number("CHAOS_LEASE", 4))
    with running_cluster(tmp_path_factory.mktemp("cluster"), model_path, sizes) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Two workers of two children, two APIs and one Valkey, whole and idle."""
    shared_cluster.heal()
    shared_cluster.forget_all()
    return shared_cluster


@pytest.fixture
def judge(cluster: Cluster, vocabulary: Model) -> Judge:
    """Checks what the clients of ``cluster`` received."""
    return Judge(cluster.store, vocabulary)


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function whose messages are printed after the tests; for measurements."""
    return lambda text: _told.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measurements."""
    if _told:
        terminalreporter.section("measured")
        for line in _told:
            terminalreporter.line(line)
