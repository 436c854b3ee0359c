"""Where the embedded Valkey's socket is, and that nobody else can put one there."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.supervisor.errors import ServiceError
from service.supervisor.programs import valkey
from service.supervisor.programs.socket_place import place_socket
from tasks.contract.redis_place import RedisPlace

pytestmark = pytest.mark.unit

LONG = "a" * 60


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short folders for what doesn't fit."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(_made(tmp_path / "r")))
    monkeypatch.setattr(tempfile, "tempdir", str(_made(tmp_path / "t")))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_it_is_in_the_state_which_is_closed_to_others(tmp_path: Path):
    folder = _made(tmp_path / "valkey")
    folder.chmod(0o755)
    assert place_socket(folder) == folder / "valkey.sock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(folder.iterdir())


def test_what_is_too_long_goes_to_the_runtime_folder_and_stays_there(tmp_path: Path):
    folder = _made(tmp_path / LONG / LONG)
    place = place_socket(folder)
    assert place.parent.parent == tmp_path / "r"
    assert place_socket(folder) == place
    assert place_socket(_made(tmp_path / LONG / (LONG + "b"))) != place


def test_a_folder_of_another_kind_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = _made(tmp_path / LONG / LONG)
    taken = place_socket(folder).parent
    taken.rmdir()
    taken.symlink_to(_made(tmp_path / "elsewhere"))
    assert place_socket(folder).parent.parent == tmp_path / "t"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ServiceError, match=r"not a folder of this user.*pass another --state-dir"):
        place_socket(folder)


def test_the_configuration_lets_nobody_in_by_network(tmp_path: Path):
    conf, place = valkey.configure(tmp_path, 1 << 30)
    lines = conf.read_text().splitlines()
    assert "port 0" in lines
    assert f'unixsocket "{place}"' in lines
    assert "unixsocketperm 600" in lines


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=20)
)
def test_any_path_is_the_same_in_the_url(name: str):
    path = Path("/run") / name / "valkey.sock"
    if len(os.fsencode(path)) <= 107:
        assert RedisPlace.parse(valkey.url_of(path)).path == str(path)
