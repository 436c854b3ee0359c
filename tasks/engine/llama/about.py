"""``python -m tasks.engine.llama.about``: prints how llama.cpp was built, as one line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from tasks.engine.llama.library import llama_cpp as ll
from tasks.engine.llama.library import load_best
from tasks.engine.llama.log import listen


def main() -> int:
    """Print the description."""
    sys.stdout.write(json.dumps(describe_build()) + "\n")
    return 0


def describe_build() -> dict[str, Any]:
    """The version, the features of the loaded kernels, and whether there is a GPU."""
    listen()
    load_best()
    told = ll.llama_print_system_info().decode()
    features = [name.split(":")[-1].strip() for name, _, value in _pairs(told) if value.strip() == "1"]
    return {
        "version": ll.__version__,
        "features": features,
        "has_gpu": bool(ll.llama_supports_gpu_offload()),
    }


def _pairs(told: str) -> Iterable[tuple[str, str, str]]:
    return (part.partition("=") for part in told.split("|"))


if __name__ == "__main__":
    sys.exit(main())
