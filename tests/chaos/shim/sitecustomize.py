"""Python runs this before the last release's worker, which can't load kernels from separate files.

It leaves a library with built-in kernels as it is.
"""

import sys
from pathlib import Path


def load_kernels() -> None:
    """Load the best kernels for this processor, as later releases do."""
    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    if any(folder.glob("libggml-cpu-*")):
        llama_cpp.llama_cpp._lib.ggml_backend_load_all_from_path(str(folder).encode())


if any("celery" in word for word in sys.orig_argv):
    load_kernels()
