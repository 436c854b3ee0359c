"""Where what was found is kept, and for which machine, library and model it holds."""

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

logger = logging.getLogger(__name__)


@cache
def library_folder() -> Path:
    """Where llama_cpp has its libraries; nothing of it is imported. ``LLAMA_CPP_LIB_PATH`` counts first."""
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
    """The processor's features as Linux lists them; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    named = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return tuple(next(named, ()))


def kernel_features() -> list[str]:
    """The processor's features that make a difference to kernels."""
    telling = ("avx", "fma", "f16c", "amx", "asimd", "i8mm", "sve", "bf16", "sse4_2", "bmi2", "neon")
    return [flag for flag in processor_flags() if flag.startswith(telling)]


def digest(*parts: object) -> str:
    """A short digest of anything that prints itself."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def model_identity(path: Path) -> tuple[str, int, int]:
    """What tells a model file from another one in its place; zeros where there is none."""
    return _identity(path.absolute())


def _identity(path: Path) -> tuple[str, int, int]:
    try:
        file = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), file.st_size, file.st_mtime_ns


def model_size(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    return model_identity(path)[1]


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until no other process measures or proves this model: they would take each other's cores.

    The lock is the system's, so it is free when its holder dies. Where there is none, nobody waits.
    """
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            import fcntl

            file = stack.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kept_path(kind: str, *parts: object) -> Path:
    """The file for what was found for this host, this library and ``parts``."""
    name = f"{kind}-{platform.node()}-{digest(machine_and_library(), *parts)}.json"
    return user_cache_path("inference-server") / name


def read(path: Path) -> Any:
    """What is kept; ``None`` when there is nothing, or nothing that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def age_s(path: Path) -> float:
    """Seconds since something was kept there; 0 if nothing is."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def keep(path: Path, found: Any) -> None:
    """Best effort: without it the next start finds it out again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found))
        part.replace(path)
    except OSError as error:
        logger.info("%s not kept: %s", path.name, error)
