"""``python -m tasks.engine.llama.quantize SOURCE TARGET ENCODING``: re-encodes a GGUF file.

It runs in a separate process, so that it can be stopped while native code runs.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from pathlib import Path

from tasks.engine.errors import ModelError
from tasks.engine.llama.library import llama_cpp as ll
from tasks.engine.llama.log import listen, recent_errors


def main() -> int:
    """Re-encode the file; on failure, return exit status 1 and print one line to standard error."""
    parser = argparse.ArgumentParser(description="Re-encode a GGUF file.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("encoding", help=f"one of {', '.join(encodings())}")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    try:
        quantize(options.source, options.target, options.encoding, options.threads)
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def quantize(source: Path, target: Path, encoding: str, threads: int) -> None:
    """Re-encode a GGUF file.

    Raises:
        ModelError: the encoding is unknown, or re-encoding fails.
    """
    ftype = getattr(ll, f"LLAMA_FTYPE_MOSTLY_{encoding.upper()}", None)
    if ftype is None:
        raise ModelError(f"unknown encoding {encoding!r}; known: {', '.join(encodings())}")
    listen()
    ll.llama_backend_init()
    params = ll.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = threads, ftype, True
    if ll.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) != 0:
        raise ModelError(f"could not re-encode {source} as {encoding}: {' '.join(recent_errors)}")


def encodings() -> list[str]:
    """Names of the encodings that :func:`quantize` knows."""
    prefix = "LLAMA_FTYPE_MOSTLY_"
    return sorted(name.removeprefix(prefix) for name in dir(ll) if name.startswith(prefix))


if __name__ == "__main__":
    sys.exit(main())
