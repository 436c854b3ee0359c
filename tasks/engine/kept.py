"""Keeps the results of measurements and proofs in files, by machine, library and model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from tasks.contract.model_parts import model_parts

logger = logging.getLogger(__name__)


@cache
def library_folder() -> Path:
    """The folder of llama_cpp's libraries, found without an import; ``LLAMA_CPP_LIB_PATH`` overrides it."""
    chosen = os.environ.get("LLAMA_CPP_LIB_PATH")
    if chosen:
        return Path(chosen)
    found = importlib.util.find_spec("llama_cpp")
    return Path(found.origin).parent / "lib" if found and found.origin else Path("llama_cpp/lib")


@cache
def machine_and_library() -> str:
    """A short digest of this host, its processor's features and llama.cpp's libraries."""
    folder = library_folder()
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    libraries = [_identity(path) for path in files if ".so" in path.name or path.suffix == ".dylib"]
    return digest(platform.node(), platform.machine(), processor_flags(), libraries)


@cache
def processor_flags() -> tuple[str, ...]:
    """The processor's features as Linux lists them; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    named = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return tuple(next(named, ()))


def kernel_features() -> list[str]:
    """The processor's features that matter to kernels."""
    telling = ("avx", "fma", "f16c", "amx", "asimd", "i8mm", "sve", "bf16", "sse4_2", "bmi2", "neon")
    return [flag for flag in processor_flags() if flag.startswith(telling)]


def digest(*parts: object) -> str:
    """A short digest of the ``repr`` of ``parts``."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def model_identity(path: Path) -> tuple[str, int, int]:
    """Path, size and modification time, which change when a model file is replaced; zeros without a file.

    For a model in several files they are the first one's path, the sum of the sizes, and the latest time.
    """
    parts = [_identity(part) for part in model_parts(path.absolute())]
    return str(path.absolute()), sum(part[1] for part in parts), max(part[2] for part in parts)


def _identity(path: Path) -> tuple[str, int, int]:
    try:
        file = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), file.st_size, file.st_mtime_ns


def model_size(path: Path) -> int:
    """Size of a model file in bytes; 0 if there is no file."""
    return model_identity(path)[1]


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until no other process measures or proves this model: two at once would compete for cores.

    The operating system frees the lock when the process that holds it dies. Without file locks nothing waits.
    """
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            import fcntl

            file = stack.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kept_path(kind: str, *parts: object) -> Path:
    """The file that keeps a result for this host, this library and ``parts``."""
    name = f"{kind}-{platform.node()}-{digest(machine_and_library(), *parts)}.json"
    return user_cache_path("inference-server") / name


def read(path: Path) -> Any:
    """The kept result; ``None`` if there is none or it can't be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def age_s(path: Path) -> float:
    """Seconds since the result was kept; 0 if there is none."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def keep(path: Path, found: Any) -> None:
    """Keep a result if possible; without it the next start measures or proves again."""
    part = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(found))
        part.replace(path)
    except OSError as error:
        logger.info("%s not kept: %s", path.name, error)
        with suppress(OSError):
            part.unlink(missing_ok=True)  # half of it, on a full disk
