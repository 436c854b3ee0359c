"""The one import of llama_cpp, and ggml's kernels, which may be variants in libraries of their own.

A library built with ``GGML_BACKEND_DL`` has no kernels until one of its ``libggml-cpu-*`` files is loaded.
Each has a score for this processor, 0 if it can't run there (``ggml_backend_score`` in ggml-backend-impl.h).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from tasks.engine.errors import KernelsError
from tasks.engine.kept import library_folder

# Read once, when OpenMP's library is loaded. Repacking weights for AMX runs a parallel region in the process
# that loads them, and a child forked after one of several threads hangs in its own first one (libgomp).
# Computing names its number of threads itself.
os.environ["OMP_NUM_THREADS"] = "1"

try:
    import llama_cpp
except (AttributeError, ImportError, OSError, RuntimeError) as error:
    raise KernelsError(
        f"llama.cpp's library can't be used: {error}; `inference-server doctor --repair` installs it again"
    ) from error

__all__ = ["llama_cpp", "load_best", "load_kernels", "variants"]

_PREFIX = "libggml-cpu-"


def variants() -> list[str]:
    """The loadable kernels that run on this processor, best first; none where the library has its own."""
    scores = {
        path.stem.removeprefix(_PREFIX): _score(path) for path in library_folder().glob(f"{_PREFIX}*.so")
    }
    return sorted((name for name, score in scores.items() if score), key=lambda name: -scores[name])


def load_best() -> None:
    """Load the best kernels there are, once in a process."""
    load_kernels(next(iter(variants()), ""))


@cache
def load_kernels(variant: str, *, with_gpu: bool = False) -> None:
    """Load one variant, and with ``with_gpu`` the libraries of devices; empty: there is nothing to load.

    Raises :class:`~tasks.engine.errors.KernelsError` when a variant can't be loaded.
    """
    folder = library_folder()
    if with_gpu:
        for path in sorted(folder.glob("libggml-*.so")):
            if not path.name.startswith(("libggml-cpu", "libggml-base")):
                _ggml().ggml_backend_load(str(path).encode())
    if variant and not _ggml().ggml_backend_load(str(folder / f"{_PREFIX}{variant}.so").encode()):
        raise KernelsError(f"llama.cpp can't load its kernels {variant} from {folder}")


@cache
def _ggml() -> ctypes.CDLL:
    # By way of libllama, which has its own ggml loaded: a wheel has copies where there were links, and each
    # copy would be a library of its own, with kernels of its own.
    library = ctypes.CDLL(str(library_folder() / "libllama.so"))
    library.ggml_backend_load.restype = ctypes.c_void_p
    library.ggml_backend_load.argtypes = [ctypes.c_char_p]
    return library


def _score(path: Path) -> int:
    try:
        return int(ctypes.CDLL(str(path)).ggml_backend_score())
    except (AttributeError, OSError):
        return 0
