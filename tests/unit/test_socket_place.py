"""Where the embedded Valkey's socket is, and that nobody else can put one there."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
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
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path, with the runtime folder ``r`` and the temporary folder ``t``.

    ``tmp_path`` comes first, since it is in the temporary folder of the tests.
    """
    assert tmp_path.is_dir()
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(_made(Path(folder, "r"))))
        monkeypatch.setattr(tempfile, "tempdir", str(_made(Path(folder, "t"))))
        yield Path(folder)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_it_is_in_the_state_which_is_closed_to_others(short: Path):
    folder = _made(short / "valkey")
    folder.chmod(0o755)
    assert place_socket(folder) == folder / "valkey.sock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(folder.iterdir())


def test_what_is_too_long_goes_to_the_runtime_folder_and_stays_there(short: Path, tmp_path: Path):
    folder = _made(tmp_path / LONG / LONG)
    place = place_socket(folder)
    assert place.parent.parent == short / "r"
    assert place_socket(folder) == place
    assert place_socket(_made(tmp_path / LONG / (LONG + "b"))) != place


def test_a_folder_of_another_kind_is_not_used(short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = _made(tmp_path / LONG / LONG)
    taken = place_socket(folder).parent
    taken.rmdir()
    taken.symlink_to(_made(tmp_path / "elsewhere"))
    assert place_socket(folder).parent.parent == short / "t"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ServiceError, match=r"not a folder of this user.*pass another --state-dir"):
        place_socket(folder)


def test_the_configuration_lets_nobody_in_by_network(short: Path):
    conf, place = valkey.configure(short, 1 << 30)
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
