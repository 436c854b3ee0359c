"""What the doctor concludes from what it sees."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from service.cli import main
from service.doctor import build, memory
from service.doctor.build import look_at_build
from service.doctor.cores import look_at_cores
from service.doctor.finding import Level
from service.doctor.memory import look_at_memory
from service.doctor.model_fit import ModelFacts, look_at_context
from service.doctor.place import look_at_metrics_port, look_at_port, look_at_state, look_at_traces
from tasks.memory_need import CHILD_BYTES, Need, _left_in_groups
from tasks.settings import WorkerSettings, available_cores

pytestmark = pytest.mark.unit

FACTS = ModelFacts(
    Path("m.gguf"), 10**8, 8192, kv_bytes_per_token=1000, n_vocab=50_000, n_embd=500, n_ff=1500
)
ONE = WorkerSettings(workers=1, threads=1, slots=4, n_ctx=200_000)


def test_memory_is_weights_once_and_buffers_for_each_child():
    one, two = (
        Need.of(FACTS, ONE),
        Need.of(FACTS, WorkerSettings(**{**ONE.model_dump(), "workers": 2, "oversubscribe": True})),
    )
    assert one.buffers > 4 * 200_000 * 1000
    assert two.total - one.total == one.buffers + CHILD_BYTES


def test_memory_that_is_not_there_names_the_context_that_fits(monkeypatch: pytest.MonkeyPatch):
    need = Need.of(FACTS, ONE)
    assert look_at_memory(FACTS, ONE).level is Level.OK
    monkeypatch.setattr(memory, "available_bytes", lambda: need.total)
    assert look_at_memory(FACTS, ONE).level is Level.WARNING
    monkeypatch.setattr(memory, "available_bytes", lambda: need.total - 1)
    found = look_at_memory(FACTS, ONE)
    assert found.level is Level.PROBLEM
    fitting = int(found.advice.split("--n-ctx ")[1].split(",")[0])
    again = WorkerSettings(**{**ONE.model_dump(), "n_ctx": fitting})
    assert look_at_memory(FACTS, again).level is Level.OK
    monkeypatch.setattr(memory, "available_bytes", lambda: FACTS.size_bytes)
    assert "smaller model" in look_at_memory(FACTS, ONE).advice


@pytest.mark.parametrize(
    ("memberships", "folder", "names"),
    [
        ("0::/app/part\n", "app", ("memory.max", "memory.current")),
        ("0::/\n", "", ("memory.max", "memory.current")),
        ("4:cpu,memory:/app\n0::/\n", "memory/app", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
)
def test_control_groups_limit_memory(memberships: str, folder: str, names: tuple[str, str], tmp_path: Path):
    group = tmp_path / folder
    group.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, ("1000\n", "600\n"), strict=True):
        (group / name).write_text(value)
    (group / "memory.stat").write_text("anon 450\ninactive_file 100\nactive_file 50\n")
    assert list(_left_in_groups(tmp_path, memberships)) == [550]
    (group / names[0]).write_text("max\n")
    assert list(_left_in_groups(tmp_path, memberships)) == []


def test_a_context_beyond_the_training():
    assert look_at_context(FACTS, 8192).level is Level.OK
    assert look_at_context(FACTS, 8193).level is Level.WARNING


def test_cores():
    cores = available_cores()
    fitting = next(look_at_cores(WorkerSettings(workers=1, threads=cores)))
    assert fitting.level is Level.OK or "physical cores" in fitting.advice
    over = WorkerSettings(workers=2, threads=cores, oversubscribe=True)
    assert "--oversubscribe" in next(look_at_cores(over)).advice
    if cores > 1:
        assert "nothing to do" in next(look_at_cores(ONE)).advice


def test_features_that_the_build_leaves_unused(monkeypatch: pytest.MonkeyPatch):
    told = {"version": "1.2", "features": ["AVX", "AVX2"], "has_gpu": False}
    monkeypatch.setattr(build, "ask", lambda _module: told)
    monkeypatch.setattr(build, "_flags", lambda: ["avx", "avx2"])
    assert look_at_build(ONE).level is Level.OK
    monkeypatch.setattr(build, "_flags", lambda: ["avx2", "fma", "avx512f"])
    found = look_at_build(ONE)
    assert found.told.endswith("unused: FMA, AVX512")
    assert "doctor --repair" in found.advice
    with_gpu = WorkerSettings(**{**ONE.model_dump(), "gpu_layers": 1})
    assert look_at_build(with_gpu).level is Level.PROBLEM


def test_a_repair_that_fails_says_why_and_examines_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("CXX", "nobody-has-this")
    result = CliRunner().invoke(main, ["doctor", "--repair", "--json"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "needs a C++ compiler: nobody-has-this is not there" in capfd.readouterr().err


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look_at_port("127.0.0.1", port).level is Level.PROBLEM
        assert look_at_metrics_port("127.0.0.1", port).level is Level.PROBLEM
    assert look_at_port("127.0.0.1", port).level is Level.OK
    assert look_at_metrics_port("127.0.0.1", port).level is Level.OK


def test_a_state_folder_that_can_not_be_one(tmp_path: Path):
    assert look_at_state(tmp_path / "not" / "there").level is Level.OK
    assert not (tmp_path / "not").exists()
    assert look_at_state(tmp_path).level is Level.OK
    (tmp_path / "file").touch()
    assert look_at_state(tmp_path / "file" / "state").level is Level.PROBLEM


def test_a_collector_that_nobody_started():
    pytest.importorskip("opentelemetry", reason="needs the extra 'tracing': pip install -e '.[tracing]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert look_at_traces(endpoint).level is Level.OK
    assert look_at_traces(endpoint).level is Level.WARNING
    assert look_at_traces("http://[nonsense").level is Level.WARNING
