"""``python -m tasks.engine.llama.quantize SOURCE TARGET ENCODING``: re-encode a GGUF file.

A process of its own, so that it can be stopped while native code runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tasks.engine.errors import ModelError
from tasks.engine.llama.model import encodings, quantize


def main() -> int:
    """Re-encode; exit status 1 and one line on standard error when it fails."""
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


if __name__ == "__main__":
    sys.exit(main())
