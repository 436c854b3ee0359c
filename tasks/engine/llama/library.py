"""Imports llama_cpp, and loads ggml's kernels, which may be variants in separate libraries.

A library built with ``GGML_BACKEND_DL`` has no kernels until one of its ``libggml-cpu-*`` files is loaded.
Each file has a score for this processor: 0 if it can't run here (``ggml_backend_score`` in
ggml-backend-impl.h).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from tasks.engine.errors import KernelsError
from tasks.engine.kept import library_folder

# OpenMP's library reads this once, when it is loaded. Repacking weights for AMX runs a parallel region in the
# process that loads them. If that region had several threads, a child forked afterwards would hang in its own
# first parallel region (libgomp). Computing sets its number of threads itself.
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
    """The loadable kernels that run on this processor, best first; empty if kernels are built in."""
    scores = {
        path.stem.removeprefix(_PREFIX): _score(path) for path in library_folder().glob(f"{_PREFIX}*.so")
    }
    return sorted((name for name, score in scores.items() if score), key=lambda name: -scores[name])


def load_best() -> None:
    """Load the best kernels for this processor, once per process."""
    load_kernels(next(iter(variants()), ""))


@cache
def load_kernels(variant: str, *, with_gpu: bool = False) -> None:
    """Load one variant of the kernels, and with ``with_gpu`` also the libraries of devices such as GPUs.

    An empty ``variant`` stands for built-in kernels, which need no loading.

    Raises:
        KernelsError: the variant can't be loaded.
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
    # Through libllama, so that this is the ggml that libllama loaded. A wheel has copies instead of links,
    # and each loaded copy would be a separate library with separate kernels.
    library = ctypes.CDLL(str(library_folder() / "libllama.so"))
    library.ggml_backend_load.restype = ctypes.c_void_p
    library.ggml_backend_load.argtypes = [ctypes.c_char_p]
    return library


def _score(path: Path) -> int:
    try:
        return int(ctypes.CDLL(str(path)).ggml_backend_score())
    except (AttributeError, OSError):
        return 0
